/* The nearest level, ties to even: 1.5 * 2^23 has no bits behind the point, so that adding it rounds. */
static int level(float x, const grid_t *g)
{
    float v = x / g->step - g->offset;
    v = v > g->low ? (v < g->high ? v : g->high) : g->low;
    v = v + 12582912.0f;
    v = v - 12582912.0f;
    return g->factor * (int)v + g->add;
}
