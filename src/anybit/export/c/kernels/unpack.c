/* One row of a weight; whole bytes, so that up to 3 numbers behind the row are written, too. */
static void unpack(const weights_t *w, int number)
{
    const int bits = w->bits;
    int size = w->size, length = (size * bits + 7) / 8;
    const uint8_t *codes = w->codes + (size_t)number * (size_t)length;
    row_t *out = row;
    row_t levels[16];
#if defined(__wasm_simd128__)
    /* Of 16 codes in 2 * bits bytes each lane takes the two bytes that hold its own; a product moves it to the top. */
    uint8_t places[32];
    uint16_t shifts[16];
    for (int i = 0; i < 16; i++) {
        places[2 * i] = (uint8_t)(i * bits / 8);
        places[2 * i + 1] = (uint8_t)(i * bits / 8 + 1);
        shifts[i] = (uint16_t)(1u << (16 - bits - i * bits % 8));
    }
    for (; size >= 16 && length >= 16; size -= 16, length -= 2 * bits, codes += 2 * bits, out += 16) {
        v128_t halves[2];
        for (int i = 0; i < 2; i++) {
            v128_t v = wasm_i8x16_swizzle(wasm_v128_load(codes), wasm_v128_load(places + 16 * i));
            v = wasm_u16x8_shr(wasm_i16x8_mul(v, wasm_v128_load(shifts + 8 * i)), (uint32_t)(16 - bits));
            halves[i] = wasm_i16x8_add(wasm_i16x8_mul(v, wasm_i16x8_splat((int16_t)w->factor)), wasm_i16x8_splat((int16_t)w->low));
        }
#if ROW_BITS == 8
        wasm_v128_store(out, wasm_i8x16_narrow_i16x8(halves[0], halves[1]));
#else
        wasm_v128_store(out, halves[0]);
        wasm_v128_store(out + 8, halves[1]);
#endif
    }
#endif
    for (int i = 0; i < 16; i++) {
        levels[i] = (row_t)(w->factor * i + w->low);
    }
#if defined(TILES) /* A half of a byte is one code or two: a table of 16 numbers for each, looked up 16 at a time. */
    if (bits == 2 || bits == 4) {
        int8_t tables[2][16];
        for (int i = 0; i < 16; i++) {
            tables[0][i] = levels[bits == 2 ? i & 3 : i];
            tables[1][i] = levels[i >> 2];
        }
        const codes_t first = CODES(tables[0]), second = CODES(tables[1]);
        for (; length >= 16; length -= 16, codes += 16) {
            const codes_t low = LOW_HALVES(CODES(codes)), high = HIGH_HALVES(CODES(codes));
            const codes_t a = LOOKED_UP(first, low), c = LOOKED_UP(first, high);
            if (bits == 4) {
                STORE_CODES(out, ZIP_LOW(a, c));
                STORE_CODES(out + 16, ZIP_HIGH(a, c));
                out += 32;
            } else {
                const codes_t b = LOOKED_UP(second, low), d = LOOKED_UP(second, high);
                const codes_t e = ZIP_LOW(a, b), f = ZIP_LOW(c, d), g = ZIP_HIGH(a, b), h = ZIP_HIGH(c, d);
                STORE_CODES(out, ZIP_LOW_PAIRS(e, f));
                STORE_CODES(out + 16, ZIP_HIGH_PAIRS(e, f));
                STORE_CODES(out + 32, ZIP_LOW_PAIRS(g, h));
                STORE_CODES(out + 48, ZIP_HIGH_PAIRS(g, h));
                out += 64;
            }
        }
    }
#endif
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
        for (int i = 0; i < size; i++) {
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
