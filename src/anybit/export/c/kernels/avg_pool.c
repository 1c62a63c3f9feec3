/* The divisor: what is given, or the pixels of the window; with those of the border, or without. */
static void avg_pool(const float *x, float *y, const conv_t *c, int border, int divisor)
{
    for (int n = 0; n < c->channels; n++, x += c->height * c->width) {
        for (int oy = 0; oy < c->out_height; oy++) {
            for (int ox = 0; ox < c->out_width; ox++) {
                int y0 = oy * c->stride_y - c->top, x0 = ox * c->stride_x - c->left;
                int y1 = y0 + c->kernel_height, x1 = x0 + c->kernel_width;
                y1 = y1 < c->height + c->top ? y1 : c->height + c->top;
                x1 = x1 < c->width + c->left ? x1 : c->width + c->left;
                int count = (y1 - y0) * (x1 - x0);
                float sum = 0.0f;
                y0 = y0 > 0 ? y0 : 0;
                x0 = x0 > 0 ? x0 : 0;
                y1 = y1 < c->height ? y1 : c->height;
                x1 = x1 < c->width ? x1 : c->width;
                for (int iy = y0; iy < y1; iy++) {
                    for (int ix = x0; ix < x1; ix++) {
                        sum += x[iy * c->width + ix];
                    }
                }
                count = border ? count : (y1 - y0) * (x1 - x0);
                *y++ = sum / (float)(divisor ? divisor : count);
            }
        }
    }
}
