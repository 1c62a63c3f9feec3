/* A weight: rows of packed codes, each beginning at a byte; a number is factor * code + low. */
typedef struct {
    const uint8_t *codes;
    int bits, factor, low, size;
    const float *scale;
    int per_row;
    const float *bias;
} weights_t;

/* A weight in float. */
typedef struct {
    const float *values;
    int size;
    const float *bias;
} plain_t;

/* A convolution of channels * height * width. */
typedef struct {
    int channels, height, width, outputs, out_height, out_width, groups, kernel_height, kernel_width;
    int stride_y, stride_x, dilation_y, dilation_x, top, left, padded_height, padded_width;
} conv_t;

/* A grid of activations: factor * round(x / step - offset) + factor * offset, clipped; factor 2 where offset is a half. */
typedef struct {
    float step, offset, low, high;
    int factor, add;
} grid_t;
