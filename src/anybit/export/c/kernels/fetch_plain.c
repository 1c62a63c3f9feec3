        const float *values = w->values + (size_t)o * (size_t)w->size;
        const float scale = 1.0f, bias = w->bias ? w->bias[o] : 0.0f;
