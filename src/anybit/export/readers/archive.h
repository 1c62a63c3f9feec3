/* An archive of anybit as a file: bytes, SHA-256, JSON, tensors and packed codes. docs/file-formats.md describes it. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST 4                  /* dimensions of a value */
#define LARGEST (1 << 28)       /* numbers of a value */
#define REFUSE(...) (fputs("refused: ", stderr), fprintf(stderr, __VA_ARGS__), fputs("\n", stderr), exit(1))
typedef struct json { char kind; const char *key, *text; double number; struct json *child, *next; } json;
static const uint8_t *body;     /* the bytes behind the header */
static int64_t body_size;
static const json *header, *metadata, *packed;

static void *room(int64_t numbers, size_t size)        /* given back when the program ends */
{
    void *made = numbers >= 0 && numbers <= 1LL << 32 ? calloc((size_t)numbers + 1, size) : 0;
    if (!made) REFUSE("there is no memory for it");
    return made;
}

/* SHA-256, FIPS 180-4. */
static const uint32_t K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01,
    0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc,
    0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147,
    0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08,
    0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208,
    0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
#define TURN(x, n) ((x) >> (n) | (x) << (32 - (n)))
static void digest(const uint8_t *data, uint64_t size, char *hex)
{
    uint32_t h[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    uint32_t v[8], w[64];
    const uint64_t whole = (size + 9 + 63) / 64 * 64;
    for (uint64_t at = 0; at < whole;) {
        for (int i = 0; i < 64; i++, at++)
            w[i / 4] = w[i / 4] << 8 | (at < size ? data[at] : at == size ? 0x80
                                        : whole - at <= 8 ? (uint8_t)(size * 8 >> 8 * (whole - at - 1)) : 0);
        for (int i = 16; i < 64; i++)
            w[i] = w[i - 16] + w[i - 7] + (TURN(w[i - 15], 7) ^ TURN(w[i - 15], 18) ^ w[i - 15] >> 3)
                 + (TURN(w[i - 2], 17) ^ TURN(w[i - 2], 19) ^ w[i - 2] >> 10);
        memcpy(v, h, sizeof v);
        for (int i = 0; i < 64; i++) {
            const uint32_t a = v[7] + (TURN(v[4], 6) ^ TURN(v[4], 11) ^ TURN(v[4], 25)) + ((v[4] & v[5]) ^ (~v[4] & v[6]))
                             + K[i] + w[i];
            const uint32_t b = (TURN(v[0], 2) ^ TURN(v[0], 13) ^ TURN(v[0], 22))
                             + ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
            memmove(v + 1, v, 7 * sizeof *v);
            v[4] += a;
            v[0] = a + b;
        }
        for (int i = 0; i < 8; i++) h[i] += v[i];
    }
    for (int i = 0; i < 8; i++) sprintf(hex + 8 * i, "%08x", (unsigned)h[i]);
}

/* JSON, of a text that ends with 0. */
static const char *text;
static int next(void) { return text += strspn(text, " \t\r\n"), *text; }
static const char *string(void)
{
    char *out = room((int64_t)strlen(text), 1), *end = out;
    for (text++; *text != '"'; text++) {
        const char *known = *text == '\\' && text[1] ? strchr("\"\\/bfnrt", text[1]) : 0;
        unsigned code = 0;
        if (known) *end++ = "\"\\/\b\f\n\r\t"[strlen("\"\\/bfnrt") - strlen(known)], text++;
        else if (*text && *text != '\\') *end++ = *text;
        else if (*text && text[1] == 'u' && strspn(text + 2, "0123456789abcdef") >= 4) {
            sscanf(text + 2, "%4x", &code);
            if (code >= 2048) *end++ = (char)(224 | code >> 12), *end++ = (char)(128 | (code >> 6 & 63));
            else if (code >= 128) *end++ = (char)(192 | code >> 6);
            *end++ = (char)(code < 128 ? code : 128 | (code & 63)), text += 5;
        } else REFUSE("its header is not JSON");
    }
    return text++, out;
}
static json *value(int depth)
{
    json *j = room(1, sizeof *j), **child = &j->child;
    char *end;
    const int c = next();
    j->kind = (char)c;
    if (c == '"') j->text = string();
    else if (c == '{' || c == '[') {
        for (text++; next() != c + 2; next() == ',' ? text++ : text) {      /* { and }, [ and ] are two apart */
            const char *key = c == '{' && *text == '"' ? string() : "";
            if ((c == '{' && (next() != ':' || !text++)) || depth > 20) REFUSE("its header is not JSON");
            *child = value(depth + 1);
            (*child)->key = key;
            child = &(*child)->next;
        }
        text++;
    } else if ((c == '-' || (c >= '0' && c <= '9')) && isfinite(j->number = strtod(text, &end)) && end > text)
        text = end, j->kind = '0';
    else REFUSE("its header is not JSON");
    return j;
}
static const json *find(const json *in, const char *key, char kind)
{
    const json *j = in && in->kind == '{' ? in->child : 0;
    while (j && strcmp(j->key, key)) j = j->next;
    if (kind && (!j || j->kind != kind)) REFUSE("its header has no '%s', or of another kind", key);
    return j;
}
static const char *word(const json *in, const char *key) { return find(in, key, '"')->text; }
static double number(const json *in, const char *key) { return find(in, key, '0')->number; }
static double either(const json *in, const char *key, double missing)
{
    return find(in, key, 0) ? number(in, key) : missing;
}
static int64_t whole(double v, int64_t low, int64_t high)
{
    if (!(v >= (double)low && v <= (double)high && v == floor(v))) REFUSE("it has the number %g where it cannot be", v);
    return (int64_t)v;
}
static int64_t list(const json *in, const char *key, int64_t *out, int64_t low, int64_t wanted)
{
    int64_t found = 0;
    for (const json *j = find(in, key, '[')->child; j; j = j->next) {
        if (j->kind != '0' || found == MOST) REFUSE("'%s' is too long, or not of numbers", key);
        out[found++] = whole(j->number, low, LARGEST);
    }
    if (wanted >= 0 && found != wanted) REFUSE("'%s' has %d numbers", key, (int)found);
    return found;
}
static const json *parsed(const char *key)
{
    text = word(metadata, key);
    return value(0);
}

/* Tensors. */
static const uint8_t *tensor(const char *name, const char *type, int64_t *numbers)
{
    const json *entry = find(header, name, '{');
    const int64_t size = strcmp(type, "U8") ? 4 : 1;
    int64_t ends[MOST];
    list(entry, "data_offsets", ends, 0, 2);
    if (strcmp(word(entry, "dtype"), type) || ends[0] > ends[1] || ends[1] > body_size || (ends[1] - ends[0]) % size)
        REFUSE("tensor '%s' does not fit the file, or is not of type %s", name, type);
    *numbers = (ends[1] - ends[0]) / size;
    return body + ends[0];
}
static float *floats(const char *name, const char *suffix, int64_t *numbers)
{
    const uint8_t *from = tensor(strcat(strcpy(room((int64_t)strlen(name) + 8, 1), name), suffix), "F32", numbers);
    return memcpy(room(*numbers, sizeof(float)), from, (size_t)*numbers * sizeof(float));
}
/* The floats of the parameter that a node names under a key, unpacked: step * (code + low); 0 if it names none. */
static float *parameter(const json *node, const char *key, int64_t size)
{
    const char *name = find(node, key, 0) ? word(node, key) : 0;
    const json *grid = name ? find(packed, name, 0) : 0;
    int64_t numbers, steps;
    if (!name) return 0;
    const int64_t bits = grid ? whole(number(grid, "bits"), 2, 8) : 0;
    const uint8_t *stream = tensor(name, grid ? "U8" : "F32", &numbers);
    if (numbers != (grid ? (size * bits + 7) / 8 : size)) REFUSE("'%s' has not the size of its layer", name);
    if (!grid) return floats(name, "", &numbers);
    const float low = (float)number(grid, "low"), *step = floats(name, ".step", &steps);
    if (steps < 1 || size % steps) REFUSE("'%s' has %d steps, which do not fit", name, (int)steps);
    float *out = room(size, sizeof(float));
    for (int64_t i = 0; i < size; i++) {
        const int64_t bit = i * bits, byte = bit / 8;
        const unsigned both = stream[byte] | (byte + 1 < numbers ? (unsigned)stream[byte + 1] << 8 : 0);
        out[i] = step[i / (size / steps)] * ((float)(both >> bit % 8 & ((1u << bits) - 1)) + low);
    }
    return out;
}


#include "ed25519.h"

/* Reads a whole file; refuses one that is no archive of version 2, whose SHA-256 is not that of its content, or that the
   owner of a key, if there is one, did not sign. */
static void open_archive(const char *path, const char *key)
{
    FILE *file = fopen(path, "rb");
    const long size = file && !fseek(file, 0, SEEK_END) ? ftell(file) : -1;
    if (size < 8 || size > LARGEST * 8L) REFUSE("%s cannot be read, or is no archive", path);
    uint8_t *content = room(size, 1);
    rewind(file);
    if (fread(content, 1, (size_t)size, file) != (size_t)size) REFUSE("%s cannot be read", path);
    fclose(file);
    if (key) check_signature(path, content, (uint64_t)size, key);
    uint64_t length = 0;
    for (int i = 7; i >= 0; i--) length = length << 8 | content[i];
    if (length > (uint64_t)size - 8) REFUSE("%s ends inside its header", path);
    char *head = room((int64_t)length + 1, 1), found[65];
    memcpy(head, content + 8, length);
    const char *place = strstr(head, "\"sha256\":\"");       /* the digest is that of the file with zeros in its place */
    if (!place || strlen(place) < 10 + 64) REFUSE("%s has no digest", path);
    const char *wanted = place + 10;
    memset(content + 8 + (wanted - head), '0', 64);
    digest(content, (uint64_t)size, found);
    if (memcmp(found, wanted, 64)) REFUSE("%s is damaged: its SHA-256 does not match", path);
    text = head, header = value(0), metadata = find(header, "__metadata__", '{');
    if (strcmp(word(metadata, "format"), "anybit-archive-2"))
        REFUSE("%s has the format '%s', and this reader knows anybit-archive-2", path, word(metadata, "format"));
    body = content + 8 + length, body_size = (int64_t)((uint64_t)size - 8 - length), packed = parsed("packed");
}
