static void unpack(const weights_t *w, int number)
{
    const uint8_t *codes = w->codes + (size_t)number * (size_t)((w->size * w->bits + 7) / 8);
    const uint32_t mask = (1u << w->bits) - 1u;
    uint32_t bits = 0;
    int have = 0;
    for (int i = 0; i < w->size; i++) {
        if (have < w->bits) {
            bits |= (uint32_t)*codes++ << have;
            have += 8;
        }
        row[i] = (row_t)(w->factor * (int)(bits & mask) + w->low);
        bits >>= w->bits;
        have -= w->bits;
    }
}
