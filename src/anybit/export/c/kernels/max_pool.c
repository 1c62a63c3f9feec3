static void max_pool(const float *x, float *y, const conv_t *c)
{
    for (int n = 0; n < c->channels; n++, x += c->height * c->width) {
        for (int oy = 0; oy < c->out_height; oy++) {
            for (int ox = 0; ox < c->out_width; ox++) {
                float best = -FLT_MAX;
                for (int ky = 0; ky < c->kernel_height; ky++) {
                    const int iy = oy * c->stride_y + ky * c->dilation_y - c->top;
                    for (int kx = 0; kx < c->kernel_width && iy >= 0 && iy < c->height; kx++) {
                        const int ix = ox * c->stride_x + kx * c->dilation_x - c->left;
                        if (ix >= 0 && ix < c->width && x[iy * c->width + ix] > best) {
                            best = x[iy * c->width + ix];
                        }
                    }
                }
                *y++ = best;
            }
        }
    }
}
