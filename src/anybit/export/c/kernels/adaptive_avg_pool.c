static void adaptive_avg_pool(const float *x, float *y, int channels, int height, int width, int out_height, int out_width)
{
    for (int n = 0; n < channels; n++, x += height * width) {
        for (int oy = 0; oy < out_height; oy++) {
            const int y0 = oy * height / out_height, y1 = ((oy + 1) * height + out_height - 1) / out_height;
            for (int ox = 0; ox < out_width; ox++) {
                const int x0 = ox * width / out_width, x1 = ((ox + 1) * width + out_width - 1) / out_width;
                float sum = 0.0f;
                for (int iy = y0; iy < y1; iy++) {
                    for (int ix = x0; ix < x1; ix++) {
                        sum += x[iy * width + ix];
                    }
                }
                *y++ = sum / (float)((y1 - y0) * (x1 - x0));
            }
        }
    }
}
