/* A reader of archives of anybit, version 2: C99 with libc and libm alone. docs/file-formats.md describes the file.

   cc -O2 -std=c99 -ffp-contract=off read.c -lm -o read
   ./read model.w4.safetensors                     checks format, digest and test vector
   ./read model.w4.safetensors INPUTS OUTPUTS      runs raw inputs (bytes or floats) and writes float32 outputs
   ./read … --key KEY.pub                          before that, checks the signature model.w4.safetensors.sig

   What it refuses is one line on stderr and exit code 1. Sums are in double, and every result is rounded to float. */
#include "archive.h"

#define NODES 4096
#define INPUTS 64               /* of one node */
typedef struct node {
    const char *op;
    const json *given;
    const struct node *in[INPUTS];
    int64_t inputs, rank, size, dim[MOST];
    float *weight, *bias, *mean, *variance, *y;
} node;
static node nodes[NODES];       /* 0 is the input */
static int64_t count;           /* of all values: the last is the output */
static const json *input, *sites;

/* Operations: x are the numbers of the first input a, y those of the node n. */
static int is(const node *n, const char *op) { return !strcmp(n->op, op); }
static void same_size(const node *a, const node *n) { if (a->size != n->size) REFUSE("'%s' changes the size", n->op); }
static void layer(node *n, int64_t weights, int64_t biases)
{
    if (!n->weight) n->weight = parameter(n->given, "weight", weights), n->bias = parameter(n->given, "bias", biases);
    if (!n->weight) REFUSE("'%s' has no weight", n->op);
}
static void windows(const node *a, node *n)         /* conv, max_pool, avg_pool */
{
    int64_t k[MOST], s[MOST], p[MOST], d[MOST];
    list(n->given, "kernel", k, 1, 2), list(n->given, "stride", s, 1, 2);
    list(n->given, "padding", p, 0, 2), list(n->given, "dilation", d, 1, 2);
    if (a->rank < 2 || a->rank > 3 || n->rank != a->rank) REFUSE("'%s' is on other dimensions than 2 or 3", n->op);
    const int64_t height = a->rank == 3 ? a->dim[1] : 1, width = a->dim[a->rank - 1], columns = n->dim[n->rank - 1];
    const int64_t area = n->size / n->dim[0], products = is(n, "conv"), border = either(n->given, "border", 0) != 0;
    const int64_t groups = products ? whole(number(n->given, "groups"), 1, LARGEST) : a->dim[0];
    const int64_t part = a->dim[0] / groups, outs = n->dim[0] / groups, row = part * k[0] * k[1];
    if (a->dim[0] % groups || n->dim[0] % groups || (!products && outs != 1) || k[0] * k[1] > LARGEST || row > LARGEST)
        REFUSE("'%s' has an impossible size", n->op);
    if (products) layer(n, n->dim[0] * row, n->dim[0]);
    for (int64_t i = 0; i < n->size; i++) {
        const int64_t o = i / area, top = i % area / columns * s[0] - p[0], left = i % columns * s[1] - p[1];
        double sum = 0, largest = -INFINITY, inside = 0, all = 0;
        for (int64_t j = 0; j < row; j++) {
            const int64_t c = j / (k[0] * k[1]), y = top + j / k[1] % k[0] * d[0], x = left + j % k[1] * d[1];
            all += y < height + p[0] && x < width + p[1];
            if (y < 0 || y >= height || x < 0 || x >= width) continue;
            const double v = a->y[((o / outs * part + c) * height + y) * width + x];
            sum += products ? v * n->weight[o * row + j] : v, largest = v > largest ? v : largest, inside++;
        }
        if (products) n->y[i] = (float)(n->bias ? sum + n->bias[o] : sum);
        else n->y[i] = (float)(is(n, "max_pool") ? largest : sum / (border ? all : inside));
    }
}
static void linear(const node *a, node *n)
{
    const int64_t from = a->rank ? a->dim[a->rank - 1] : 1, to = n->rank ? n->dim[n->rank - 1] : 1;
    if (a->size / from != n->size / to || from * to > LARGEST) REFUSE("a linear layer has an impossible size");
    layer(n, from * to, to);
    for (int64_t i = 0; i < n->size; i++) {
        double sum = 0;
        for (int64_t j = 0; j < from; j++) sum += (double)a->y[i / to * from + j] * n->weight[i % to * from + j];
        n->y[i] = (float)(n->bias ? sum + n->bias[i % to] : sum);
    }
}
static void norm(const node *a, node *n)            /* group_norm, batch_norm */
{
    const int64_t channels = a->rank ? a->dim[0] : 1, own = is(n, "group_norm");
    const int64_t groups = own ? whole(number(n->given, "groups"), 1, LARGEST) : channels, size = a->size / groups;
    const double eps = number(n->given, "eps");
    same_size(a, n);
    if (channels % groups) REFUSE("a norm has an impossible size");
    if (!n->weight) n->weight = parameter(n->given, "weight", channels), n->bias = parameter(n->given, "bias", channels);
    if (!own && !n->mean) n->mean = parameter(n->given, "mean", channels);
    if (!own && !n->variance) n->variance = parameter(n->given, "variance", channels);
    if (!own && (!n->mean || !n->variance)) REFUSE("a norm has no mean or variance");
    for (int64_t g = 0; g < groups; g++) {
        const float *x = a->y + g * size;
        double mean = own ? 0 : n->mean[g], variance = own ? 0 : n->variance[g];
        for (int64_t i = 0; own && i < size; i++) mean += x[i];
        mean = own ? mean / (double)size : mean;
        for (int64_t i = 0; own && i < size; i++) variance += (x[i] - mean) * (x[i] - mean);
        variance = own ? variance / (double)size : variance;
        for (int64_t i = 0; i < size; i++) {
            const int64_t c = (g * size + i) / (a->size / channels);
            const double v = (x[i] - mean) / sqrt(variance + eps) * (n->weight ? n->weight[c] : 1);
            n->y[g * size + i] = (float)(v + (n->bias ? n->bias[c] : 0));
        }
    }
}
static void quantize(const node *a, node *n)
{
    const json *grid = find(sites, word(n->given, "site"), '{');
    const float low = (float)number(grid, "low"), high = (float)number(grid, "high"), o = (float)number(grid, "offset");
    int64_t steps = 1;
    same_size(a, n);
    if (!n->weight) n->weight = floats(grid->key, ".step", &steps);
    if (steps != 1) REFUSE("'%s' has several steps", grid->key);
    for (int64_t i = 0; i < n->size; i++) {
        const float v = rintf(a->y[i] / n->weight[0] - o) + o;      /* half to even, as the processor rounds */
        n->y[i] = n->weight[0] * (v < low ? low : v > high ? high : v);
    }
}
static void window(const node *a, node *n)
{
    int64_t axes[MOST], start[MOST], step[MOST], stride[MOST] = {0};
    const float fill = (float)number(n->given, "value");
    list(n->given, "start", start, -LARGEST, n->rank), list(n->given, "step", step, 1, n->rank);
    list(n->given, "axes", axes, 0, n->rank);
    if (a->rank != n->rank) REFUSE("a window has other dimensions than its input");
    for (int64_t d = a->rank - 1, size = 1; d >= 0; size *= a->dim[d--])
        stride[d] = size, whole((double)axes[d], 0, a->rank - 1);
    for (int64_t i = 0; i < n->size; i++) {
        int64_t rest = i, place = 0, inside = 1;
        for (int64_t d = n->rank - 1; d >= 0; rest /= n->dim[d--]) {
            const int64_t at = start[d] + step[d] * (rest % n->dim[d]);
            inside = inside && at >= 0 && at < a->dim[axes[d]];
            place += inside ? at * stride[axes[d]] : 0;
        }
        n->y[i] = inside && place < a->size ? a->y[place] : fill;
    }
}
static void each(const node *a, node *n)            /* a number, or two, at a time */
{
    static const char *known[] = {"relu", "leaky_relu", "clamp", "sigmoid", "silu", "tanh", "hardsigmoid", "hardswish",
                                  "scale", "reshape", "add", "sub", "mul", 0};
    const double low = either(n->given, "low", -INFINITY), high = either(n->given, "high", INFINITY);
    const double slope = either(n->given, "slope", 0), factor = either(n->given, "factor", 1);
    const double shift = either(n->given, "shift", 0);
    const node *b = n->inputs == 2 ? n->in[1] : a;
    int op = 0;
    while (known[op] && strcmp(n->op, known[op])) op++;
    if (!known[op]) REFUSE("it has the operation '%s', which this reader does not know", n->op);
    same_size(a, n);
    if ((op > 9) != (n->inputs == 2) || a->size % b->size) REFUSE("'%s' has inputs that do not fit", n->op);
    for (int64_t i = 0; i < n->size; i++) {
        const double v = a->y[i], w = b->y[i / (a->size / b->size)], hard = v < -3 ? 0 : v > 3 ? 1 : (v + 3) / 6;
        const double made[] = {v > 0 ? v : 0, v > 0 ? v : v * slope, v < low ? low : v > high ? high : v, 1 / (1 + exp(-v)),
                               v / (1 + exp(-v)), tanh(v), hard, v * hard, v * factor + shift, v, v + w, v - w, v * w};
        n->y[i] = (float)made[op];
    }
}
static void mean(const node *a, node *n)
{
    const int64_t size = a->size / n->size;
    if (a->size % n->size) REFUSE("a mean has an impossible size");
    for (int64_t i = 0; i < n->size; i++) {
        double sum = 0;
        for (int64_t j = 0; j < size; j++) sum += a->y[i * size + j];
        n->y[i] = (float)(sum / (double)size);
    }
}
static void cat(node *n)
{
    int64_t at = 0;
    for (int64_t i = 0; i < n->inputs; at += n->in[i++]->size) {
        if (n->in[i]->size > n->size - at) REFUSE("'cat' has inputs that do not fit");
        memcpy(n->y + at, n->in[i]->y, (size_t)n->in[i]->size * sizeof(float));
    }
    if (at != n->size) REFUSE("'cat' has inputs that do not fit");
}
static void compute(node *n)
{
    const node *a = n->in[0];
    if (is(n, "conv") || is(n, "max_pool") || is(n, "avg_pool")) windows(a, n);
    else if (is(n, "linear")) linear(a, n);
    else if (is(n, "window")) window(a, n);
    else if (is(n, "mean")) mean(a, n);
    else if (is(n, "cat")) cat(n);
    else if (is(n, "group_norm") || is(n, "batch_norm")) norm(a, n);
    else if (is(n, "quantize")) quantize(a, n);
    else each(a, n);
}

static void shaped(node *n, const json *given)
{
    n->given = given, n->size = 1, n->rank = list(given, "shape", n->dim, 1, -1);
    for (int64_t d = 0; d < n->rank; d++)
        if ((n->size *= n->dim[d]) > LARGEST) REFUSE("a value has too many numbers");
    n->y = room(n->size, sizeof(float));
}
static void read_graph(void)
{
    if (find(metadata, "no_graph", 0)) REFUSE("it has weights and no graph: %s", word(metadata, "no_graph"));
    sites = parsed("activations"), input = parsed("input");
    if (strcmp(word(input, "type"), "U8") && strcmp(word(input, "type"), "F32")) REFUSE("its input is of no known type");
    shaped(nodes, input);
    count = 1;
    for (const json *j = parsed("graph")->child; j; j = j->next, count++) {
        if (count == NODES) REFUSE("it has more than %d nodes", NODES - 1);
        node *n = nodes + count;
        n->op = word(j, "op");
        shaped(n, j);
        for (const json *i = find(j, "in", '[')->child; i; i = i->next) {
            if (i->kind != '0' || n->inputs == INPUTS) REFUSE("'%s' has inputs that do not fit", n->op);
            n->in[n->inputs++] = nodes + whole(i->number, 0, count - 1);
        }
        if (!n->inputs) REFUSE("'%s' has no input", n->op);
    }
}
/* Runs one raw example; returns the outputs. */
static const float *run(const uint8_t *raw)
{
    const int64_t bytes = !strcmp(word(input, "type"), "U8");
    const json *mean = find(input, "mean", '[')->child, *std = find(input, "std", '[')->child;
    int64_t channels = 0, area;
    for (const json *j = mean; j; j = j->next) channels++;
    area = channels ? nodes->size / channels : nodes->size;
    if (channels && nodes->size % channels) REFUSE("the means are not those of the input's channels");
    for (int64_t i = 0; i < nodes->size; i++) {
        float v;
        if (bytes) v = (float)raw[i] / 255.0f;
        else memcpy(&v, raw + 4 * i, 4);
        if (i && i % area == 0 && channels) mean = mean->next, std = std->next;
        if (channels && (!std || mean->kind != '0' || std->kind != '0')) REFUSE("mean and std do not fit");
        nodes->y[i] = channels ? (v - (float)mean->number) / (float)std->number : v;
    }
    for (int64_t i = 1; i < count; i++) compute(nodes + i);
    return nodes[count - 1].y;
}
int main(int arguments, char **argument)
{
    const char *key = arguments > 3 && !strcmp(argument[arguments - 2], "--key") ? argument[arguments - 1] : 0;
    arguments -= key ? 2 : 0;
    if (arguments != 2 && arguments != 4) REFUSE("usage: read ARCHIVE [INPUTS OUTPUTS] [--key KEY.pub]");
    open_archive(argument[1], key);
    read_graph();
    const char *type = word(input, "type");
    const int64_t bytes = nodes->size * (strcmp(type, "U8") ? 4 : 1), outputs = nodes[count - 1].size;
    int64_t given, expected;
    const uint8_t *raw = tensor("test/inputs", type, &given);
    const float *wanted = floats("test/outputs", "", &expected);
    const double tolerance = number(parsed("test"), "tolerance");
    const int64_t examples = given / nodes->size;
    double worst = 0;
    if (examples < 1 || given % nodes->size || expected != examples * outputs) REFUSE("its test vector has another size");
    for (int64_t n = 0; n < examples; n++) {
        const float *y = run(raw + n * bytes);
        for (int64_t i = 0; i < outputs; i++) {
            const double difference = fabs((double)y[i] - wanted[n * outputs + i]);
            if (!(difference <= tolerance)) REFUSE("its test vector is missed by %g, more than %g", difference, tolerance);
            worst = difference > worst ? difference : worst;
        }
    }
    printf("%s: %s, test vector of %d within %g\n", argument[1], word(metadata, "width"), (int)examples, worst);
    if (arguments == 2) return 0;
    FILE *in = fopen(argument[2], "rb"), *out = fopen(argument[3], "wb");
    uint8_t *example = room(bytes, 1);
    if (!in || !out) REFUSE("%s or %s cannot be opened", argument[2], argument[3]);
    while (fread(example, 1, (size_t)bytes, in) == (size_t)bytes)
        fwrite(run(example), sizeof(float), (size_t)outputs, out);
    if (ferror(out) || fclose(out)) REFUSE("%s cannot be written", argument[3]);
    return fclose(in);
}
