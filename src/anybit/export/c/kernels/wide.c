#if defined(WIDE)
/* Sixteen rows, four bytes of each in turn, zeros where a row or a piece ends; and what flipping every x takes from their sums. */
static void spread_$name(const weights_t *w, int first, int rows, int piece, int lanes, int32_t *flipped)
{
    for (int r = 0; r < 16; r++) {
        int8_t *to = tiles + 4 * r;
        uint32_t sum = 0;
        if (r < rows) {
            unpack(w, first + r);
        }
        for (int i = 0; i < w->size && r < rows && piece == lanes; i += 4, to += 64) {
            memcpy(to, row + i, 4);
        }
        for (int start = 0; start < w->size && (r >= rows || piece < lanes); start += piece) {
            for (int i = 0; i < lanes; i += 4, to += 64) {
                int8_t four[4] = {0, 0, 0, 0};
                for (int j = 0; j < 4 && i + j < piece && r < rows; j++) {
                    four[j] = row[start + i + j];
                }
                memcpy(to, four, 4);
            }
        }
        for (int i = 0; i < (r < rows ? w->size : 0); i++) {
            sum += (uint32_t)row[i];
        }
        flipped[r] = $unsigned ? 0 : (int32_t)(0u - 128u * sum);
    }
}

static __m256i four_$name(const $type *x)
{
    int32_t bytes;
    memcpy(&bytes, x, sizeof bytes);
#if $unsigned
    return _mm256_set1_epi32(bytes);
#else
    return FLIPPED(_mm256_set1_epi32(bytes));
#endif
}

/* Sixteen outputs in the lanes of two sums at each of four places, so that no sum has to be taken apart. */
static void sums_$name(const $type *const *at, int count, eight_t *a, eight_t *b)
{
    const $type *x0 = at[0], *x1 = at[1], *x2 = at[2], *x3 = at[3];
    const int8_t *k = tiles;
    $zeros
    for (const int *n = offsets; n < offsets + count; n++, k += 64) {
        const int i = *n;
        const __m256i w0 = BYTES(k), w1 = BYTES(k + 32);
$steps
    }
$results
}

/* Places of all lines, eight at a time. */
static void $name(const $type *x, float *y, const weights_t *w, const conv_t *c)
{
    const int channels = c->channels / c->groups, outputs = c->outputs / c->groups;
    const int area = c->padded_height * c->padded_width * channels, wide = c->out_height * c->out_width;
    const int piece = c->dilation_x == 1 ? c->kernel_width * channels : channels, lanes = (piece + 3) / 4 * 4;
    const int pieces = c->dilation_x == 1 ? 1 : c->kernel_width;
    int count = 0;
    for (int n = 0; n < c->kernel_height * pieces; n++) {
        const int ky = n / pieces, kx = n % pieces;
        for (int i = 0; i < lanes; i += 4) {
            offsets[count++] = (ky * c->dilation_y * c->padded_width + kx * c->dilation_x) * channels + i;
        }
    }
    for (int o = 0, rows; o < c->outputs; o += rows) {
        const $type *group = x + (o / outputs) * area;
        int32_t flipped[16];
        float scales[16], biases[16];
        rows = outputs - o % outputs < 16 ? outputs - o % outputs : 16;
        spread_$name(w, o, rows, piece, lanes, flipped);
        for (int r = 0; r < 16; r++) {
            scales[r] = w->scale[w->per_row && r < rows ? o + r : 0];
            biases[r] = w->bias && r < rows ? w->bias[o + r] : 0.0f;
        }
        for (int place = 0; place < wide; place += 8) {
            const int places = wide - place < 8 ? wide - place : 8;
            const $type *at[8];
            eight_t sums[2][8];
            for (int i = 0; i < 8; i++) {
                const int p = place + (i < places ? i : 0), oy = p / c->out_width, ox = p % c->out_width;
                at[i] = group + (oy * c->stride_y * c->padded_width + ox * c->stride_x) * channels;
            }
            for (int i = 0; i < 8; i += 4) {
                sums_$name(at + i, count, sums[0] + i, sums[1] + i);
            }
            for (int half = 0; half < 2; half++) {
                const __m256i add = BYTES(flipped + 8 * half);
                const __m256 scale = _mm256_loadu_ps(scales + 8 * half), bias = _mm256_loadu_ps(biases + 8 * half);
                __m256 v[8];
                for (int i = 0; i < 8; i++) {
                    v[i] = _mm256_cvtepi32_ps(_mm256_add_epi32((__m256i)sums[half][i], add));
                    v[i] = _mm256_add_ps(_mm256_mul_ps(v[i], scale), bias);
                }
                eight_lines(v);
                for (int r = 8 * half; r < rows && r < 8 * half + 8; r++) {
                    float *to = y + (o + r) * wide + place;
                    if (places == 8) {
                        _mm256_storeu_ps(to, v[r % 8]);
                    } else {
                        float done[8];
                        _mm256_storeu_ps(done, v[r % 8]);
                        memcpy(to, done, (size_t)places * sizeof(float));
                    }
                }
            }
        }
    }
}
#endif
