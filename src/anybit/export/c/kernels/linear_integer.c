static void $name(const $type *x, float *y, const weights_t *w, int rows, int outputs$extra)
{
$ignored    for (int o = 0; o < outputs; o++) {
        const float scale = w->scale[w->per_row ? o : 0], bias = w->bias ? w->bias[o] : 0.0f;
        unpack(w, o);
        for (int r = 0; r < rows; r++) {
            y[r * outputs + o] = (float)$dot(row, x + r * w->size, w->size) * scale + bias;
        }
    }
}
