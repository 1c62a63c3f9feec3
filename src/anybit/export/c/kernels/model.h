/* $about
 *
 * One example at a time: anybit_${name}_run(input, output) reads $INPUT floats and writes $OUTPUT, which must not overlap,
 * and returns 0, or -1 if a pointer is null. Memory is static: one call at a time.
 * Compile with -std=c99 (no contraction of products and sums)$libm.
 * Input: the last dimension changes fastest$normalization.
 */
#ifndef ANYBIT_${NAME}_H
#define ANYBIT_${NAME}_H

#define ANYBIT_${NAME}_WIDTH "$width"
#define ANYBIT_${NAME}_INPUT_SIZE $INPUT
#define ANYBIT_${NAME}_INPUT_SHAPE {$input_shape}
#define ANYBIT_${NAME}_OUTPUT_SIZE $OUTPUT
#define ANYBIT_${NAME}_OUTPUT_SHAPE {$output_shape}
#define ANYBIT_${NAME}_ARENA_BYTES $arena_bytes
#define ANYBIT_${NAME}_RAM_BYTES $ram_bytes
#define ANYBIT_${NAME}_WEIGHT_BYTES $weight_bytes
#define ANYBIT_${NAME}_WEIGHTS_SHA256 "$sha256"
#define ANYBIT_${NAME}_VERSION "$version"
$mean_std
#ifdef __cplusplus
extern "C" {
#endif
int anybit_${name}_run(const float *input, float *output);
#ifdef __cplusplus
}
#endif

#endif
