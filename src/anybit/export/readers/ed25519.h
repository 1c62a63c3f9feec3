/* Ed25519 signatures (RFC 8032): verification alone. All of it is public, so nothing needs to take constant time. */

/* SHA-512, FIPS 180-4. */
static const uint64_t K512[80] = {
    0x428a2f98d728ae22, 0x7137449123ef65cd, 0xb5c0fbcfec4d3b2f, 0xe9b5dba58189dbbc, 0x3956c25bf348b538, 0x59f111f1b605d019,
    0x923f82a4af194f9b, 0xab1c5ed5da6d8118, 0xd807aa98a3030242, 0x12835b0145706fbe, 0x243185be4ee4b28c, 0x550c7dc3d5ffb4e2,
    0x72be5d74f27b896f, 0x80deb1fe3b1696b1, 0x9bdc06a725c71235, 0xc19bf174cf692694, 0xe49b69c19ef14ad2, 0xefbe4786384f25e3,
    0x0fc19dc68b8cd5b5, 0x240ca1cc77ac9c65, 0x2de92c6f592b0275, 0x4a7484aa6ea6e483, 0x5cb0a9dcbd41fbd4, 0x76f988da831153b5,
    0x983e5152ee66dfab, 0xa831c66d2db43210, 0xb00327c898fb213f, 0xbf597fc7beef0ee4, 0xc6e00bf33da88fc2, 0xd5a79147930aa725,
    0x06ca6351e003826f, 0x142929670a0e6e70, 0x27b70a8546d22ffc, 0x2e1b21385c26c926, 0x4d2c6dfc5ac42aed, 0x53380d139d95b3df,
    0x650a73548baf63de, 0x766a0abb3c77b2a8, 0x81c2c92e47edaee6, 0x92722c851482353b, 0xa2bfe8a14cf10364, 0xa81a664bbc423001,
    0xc24b8b70d0f89791, 0xc76c51a30654be30, 0xd192e819d6ef5218, 0xd69906245565a910, 0xf40e35855771202a, 0x106aa07032bbd1b8,
    0x19a4c116b8d2d0c8, 0x1e376c085141ab53, 0x2748774cdf8eeb99, 0x34b0bcb5e19b48a8, 0x391c0cb3c5c95a63, 0x4ed8aa4ae3418acb,
    0x5b9cca4f7763e373, 0x682e6ff3d6b2b8a3, 0x748f82ee5defb2fc, 0x78a5636f43172f60, 0x84c87814a1f0ab72, 0x8cc702081a6439ec,
    0x90befffa23631e28, 0xa4506cebde82bde9, 0xbef9a3f7b2c67915, 0xc67178f2e372532b, 0xca273eceea26619c, 0xd186b8c721c0c207,
    0xeada7dd6cde0eb1e, 0xf57d4f7fee6ed178, 0x06f067aa72176fba, 0x0a637dc5a2c898a6, 0x113f9804bef90dae, 0x1b710b35131c471b,
    0x28db77f523047d84, 0x32caab7b40c72493, 0x3c9ebe0a15c9bebc, 0x431d67c49c100d4c, 0x4cc5d4becb3e42b6, 0x597f299cfc657e2a,
    0x5fcb6fab3ad6faec, 0x6c44198c4a475817};
static const uint64_t START512[8] = {
    0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1,
    0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179};
static uint64_t turned(uint64_t x, int by) { return x >> by | x << (64 - by); }
static void mix512(uint64_t state[8], const uint8_t *bytes)
{
    uint64_t w[80] = {0}, v[8];
    for (int i = 0; i < 128; i++) w[i / 8] = w[i / 8] << 8 | bytes[i];
    for (int i = 16; i < 80; i++)
        w[i] = w[i - 16] + w[i - 7] + (turned(w[i - 15], 1) ^ turned(w[i - 15], 8) ^ w[i - 15] >> 7)
             + (turned(w[i - 2], 19) ^ turned(w[i - 2], 61) ^ w[i - 2] >> 6);
    memcpy(v, state, sizeof v);
    for (int i = 0; i < 80; i++) {
        const uint64_t first = v[7] + (turned(v[4], 14) ^ turned(v[4], 18) ^ turned(v[4], 41))
                             + ((v[4] & v[5]) ^ (~v[4] & v[6])) + K512[i] + w[i];
        const uint64_t second = (turned(v[0], 28) ^ turned(v[0], 34) ^ turned(v[0], 39))
                              + ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += first, v[0] = first + second;
    }
    for (int i = 0; i < 8; i++) state[i] += v[i];
}

/* Numbers below 2^256 as eight words, the lowest first; sums and products are modulo p = 2^255 - 19, but may exceed it. */
typedef struct { uint32_t w[8]; } big;
#define ALL 0xffffffff
static const big P = {{0xffffffed, ALL, ALL, ALL, ALL, ALL, ALL, 0x7fffffff}};
static const big INVERT = {{0xffffffeb, ALL, ALL, ALL, ALL, ALL, ALL, 0x7fffffff}};     /* p - 2 */
static const big ROOT = {{0xfffffffe, ALL, ALL, ALL, ALL, ALL, ALL, 0x0fffffff}};       /* (p + 3)/8 */
static const big IMAGINARY = {{0xfffffffb, ALL, ALL, ALL, ALL, ALL, ALL, 0x1fffffff}};  /* (p - 1)/4: 2^this squared is -1 */
static const big ORDER = {{
    0x5cf5d3ed, 0x5812631a, 0xa2f79cd6, 0x14def9de, 0x00000000, 0x00000000, 0x00000000, 0x10000000}};     /* of the base point */
static big small(uint32_t n) { big out = {{n}}; return out; }
static int bit(const big *a, int i) { return a->w[i / 32] >> i % 32 & 1; }
static int less(const big *a, const big *b)
{
    for (int i = 7; i >= 0; i--)
        if (a->w[i] != b->w[i]) return a->w[i] < b->w[i];
    return 0;
}
static big without(big a, const big *b)             /* a - b, where that is not negative */
{
    int64_t carry = 0;
    for (int i = 0; i < 8; i++) carry += (int64_t)a.w[i] - b->w[i], a.w[i] = (uint32_t)carry, carry = -(carry < 0);
    return a;
}
static big least(big a) { while (!less(&a, &P)) a = without(a, &P); return a; }
static big folded(big a, uint64_t high)             /* a + 2^256 high; 2^256 is 38 */
{
    while (high) {
        uint64_t carry = 38 * high;
        for (int i = 0; i < 8; i++) carry += a.w[i], a.w[i] = (uint32_t)carry, carry >>= 32;
        high = carry;
    }
    return a;
}
static big plus(big a, big b)
{
    uint64_t carry = 0;
    for (int i = 0; i < 8; i++) carry += (uint64_t)a.w[i] + b.w[i], a.w[i] = (uint32_t)carry, carry >>= 32;
    return folded(a, carry);
}
static big minus(big a, big b) { b = least(b); return plus(a, without(P, &b)); }
static big times(big a, big b)
{
    uint32_t t[16] = {0};
    uint64_t carry = 0;
    big out;
    for (int i = 0; i < 8; i++, carry = 0) {
        for (int j = 0; j < 8; j++) carry += t[i + j] + (uint64_t)a.w[i] * b.w[j], t[i + j] = (uint32_t)carry, carry >>= 32;
        t[i + 8] = (uint32_t)carry;
    }
    for (int i = 0; i < 8; i++) carry += t[i] + (uint64_t)38 * t[i + 8], out.w[i] = (uint32_t)carry, carry >>= 32;
    return folded(out, carry);
}
static int equals(big a, big b) { a = least(a), b = least(b); return !memcmp(&a, &b, sizeof a); }
static big power(big a, const big *exponent)
{
    big out = small(1);
    for (int i = 255; i >= 0; i--) out = times(out, out), out = bit(exponent, i) ? times(out, a) : out;
    return out;
}
static big ratio(big a, big b) { return times(a, power(b, &INVERT)); }
static big loaded(const uint8_t *bytes)
{
    big out = small(0);
    for (int i = 0; i < 32; i++) out.w[i / 4] |= (uint32_t)bytes[i] << i % 4 * 8;
    return out;
}

/* Points of the curve -x^2 + y^2 = 1 + d x^2 y^2: x = X/Z, y = Y/Z, and T = X Y/Z. One formula adds any two of them. */
typedef struct { big x, y, z, t; } point;
static point added(const point *a, const point *b, big d)
{
    const big left = times(minus(a->y, a->x), minus(b->y, b->x)), right = times(plus(a->y, a->x), plus(b->y, b->x));
    const big c = times(plus(d, d), times(a->t, b->t)), e = times(plus(a->z, a->z), b->z);
    const big over = minus(right, left), under = plus(right, left), f = minus(e, c), g = plus(e, c);
    const point out = {times(over, f), times(g, under), times(f, g), times(over, under)};
    return out;
}
static point multiple(const big *n, const point *a, big d)
{
    point out = {small(0), small(1), small(1), small(0)};
    for (int i = 255; i >= 0; i--) {
        out = added(&out, &out, d);
        if (bit(n, i)) out = added(&out, a, d);
    }
    return out;
}
static int on_curve(point *out, big y, int odd, big d)  /* finds x; 0 if there is none */
{
    const big square = times(y, y), w = ratio(minus(square, small(1)), plus(times(d, square), small(1)));
    big x = power(w, &ROOT);
    if (!equals(times(x, x), w)) x = times(x, power(small(2), &IMAGINARY));
    x = least(x);
    if (!less(&y, &P) || !equals(times(x, x), w) || (odd && equals(x, small(0)))) return 0;
    out->x = bit(&x, 0) == odd ? x : without(P, &x), out->y = y, out->z = small(1), out->t = times(out->x, y);
    return 1;
}

/* SHA-512 of R, A and the message, modulo the order. */
static big challenge(const uint8_t *r, const uint8_t *a, const uint8_t *message, uint64_t size)
{
    const uint64_t whole_size = (64 + size + 17 + 127) / 128 * 128;
    uint8_t *all = room((int64_t)whole_size, 1);
    uint64_t state[8];
    big out = small(0);
    memcpy(all, r, 32), memcpy(all + 32, a, 32), memcpy(all + 64, message, size);
    all[64 + size] = 0x80;
    for (int i = 0; i < 8; i++) all[whole_size - 1 - i] = (uint8_t)((64 + size) * 8 >> 8 * i);
    memcpy(state, START512, sizeof state);
    for (uint64_t at = 0; at < whole_size; at += 128) mix512(state, all + at);
    for (int i = 511; i >= 0; i--) {                /* bytes are the lowest first, those of a state's word the highest */
        uint32_t carry = (uint32_t)(state[i / 64] >> (56 - i % 64 / 8 * 8 + i % 8) & 1);
        for (int j = 0; j < 8; j++) { const uint32_t top = out.w[j] >> 31; out.w[j] = out.w[j] << 1 | carry, carry = top; }
        if (!less(&out, &ORDER)) out = without(out, &ORDER);
    }
    return out;
}

/* Tells whether a signature (R, S) of a message is that of a public key A: S B = R + h A. */
static int signed_by(const uint8_t key[32], const uint8_t signature[64], const uint8_t *message, uint64_t size)
{
    const big d = ratio(minus(small(0), small(121665)), small(121666)), s = loaded(signature + 32);
    big y = loaded(key);
    const int odd = bit(&y, 255);
    point a, base;
    y.w[7] &= 0x7fffffff;
    if (!less(&s, &ORDER) || !on_curve(&a, y, odd, d) || !on_curve(&base, least(ratio(small(4), small(5))), 0, d)) return 0;
    a.x = minus(small(0), a.x), a.t = minus(small(0), a.t);
    const big h = challenge(signature, key, message, size);
    const point left = multiple(&s, &base, d), right = multiple(&h, &a, d), r = added(&left, &right, d);
    const big x = least(ratio(r.x, r.z));
    big encoded = least(ratio(r.y, r.z));
    encoded.w[7] |= (uint32_t)bit(&x, 0) << 31;
    const big given = loaded(signature);
    return !memcmp(&encoded, &given, sizeof given);
}

/* Reads a public key in PEM: base64 of the 12 bytes that say Ed25519, and of its own 32. */
static void read_key(const char *path, uint8_t key[32])
{
    static const uint8_t about[12] = {0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00};
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    static const char begin[] = "-----BEGIN PUBLIC KEY-----";
    char content[1024] = {0};
    uint8_t der[44];
    FILE *file = fopen(path, "rb");
    if (!file) REFUSE("%s cannot be opened", path);
    const char *at = fread(content, 1, sizeof content - 1, file) ? strstr(content, begin) : 0;
    uint32_t bits = 0, held = 0, count = 0;
    for (at = at ? at + sizeof begin - 1 : ""; *at && count < sizeof der; at++) {
        const char *found = strchr(digits, *at);
        if (!found) continue;
        bits = bits << 6 | (uint32_t)(found - digits), held += 6;
        if (held >= 8) held -= 8, der[count++] = (uint8_t)(bits >> held);
    }
    if (count != sizeof der || memcmp(der, about, sizeof about)) REFUSE("%s is no public key of Ed25519 in PEM", path);
    memcpy(key, der + 12, 32), fclose(file);
}

/* Refuses content without a signature PATH.sig by the owner of a key. */
static void check_signature(const char *path, const uint8_t *content, uint64_t size, const char *key_path)
{
    uint8_t key[32], signature[65];
    char *name = room((int64_t)strlen(path) + 5, 1);
    strcat(strcpy(name, path), ".sig");
    FILE *file = fopen(name, "rb");
    read_key(key_path, key);
    if (!file || fread(signature, 1, 65, file) != 64 || !signed_by(key, signature, content, size))
        REFUSE("it is not signed with this key");
    fclose(file);
}
