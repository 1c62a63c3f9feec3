/* One row of a weight; whole bytes, so that up to 3 numbers behind the row are written, too. */
static void unpack(const weights_t *w, int number)
{
    const int bits = w->bits, length = (w->size * bits + 7) / 8;
    const uint8_t *codes = w->codes + (size_t)number * (size_t)length;
    row_t *out = row;
    row_t levels[16];
    for (int i = 0; i < 16; i++) {
        levels[i] = (row_t)(w->factor * i + w->low);
    }
    if (bits == 2) {
        for (int i = 0; i < length; i++, out += 4) {
            const unsigned code = codes[i];
            out[0] = levels[code & 3];
            out[1] = levels[code >> 2 & 3];
            out[2] = levels[code >> 4 & 3];
            out[3] = levels[code >> 6];
        }
    } else if (bits == 4) {
        for (int i = 0; i < length; i++, out += 2) {
            out[0] = levels[codes[i] & 15];
            out[1] = levels[codes[i] >> 4];
        }
    } else if (bits == 8) {
        for (int i = 0; i < length; i++) {
            out[i] = (row_t)(codes[i] + w->low);
        }
    } else {
        const unsigned mask = (1u << bits) - 1u;
        unsigned buffer = 0;
        int have = 0;
        for (int i = 0; i < w->size; i++) {
            if (have < bits) {
                buffer |= (unsigned)*codes++ << have;
                have += 8;
            }
            out[i] = (row_t)(w->factor * (int)(buffer & mask) + w->low);
            buffer >>= bits;
            have -= bits;
        }
    }
}
