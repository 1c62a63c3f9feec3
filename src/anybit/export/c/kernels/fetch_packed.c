        const row_t *values = row;
        const float scale = w->scale[w->per_row ? o : 0], bias = w->bias ? w->bias[o] : 0.0f;
        unpack(w, o);
