// Kernels for one client on one core. Tensors are float32, [channel][row][column][image]; weights [outer][inner][a][b].
#include "direct.h"
#include "draw.h"
#include "norm.h"
#include "pool.h"
#include "round.h"
#include "winograd.h"

using namespace anybit;

namespace {

// With fewer channels the transforms cost more than they save.
bool by_winograd(const Shape& s) {
    return s.kernel == 3 && s.stride == 1 && s.padding <= 2 && s.inner >= 8 && s.outer >= 8;
}

}  // namespace

extern "C" {

void conv_forward(const float* x, const float* w, const float* bias, float* y, const Shape* s) {
    if (!by_winograd(*s)) return direct_forward(*s, x, w, bias, y);
    winograd(s->images, s->inner, s->height, s->width, s->outer, s->padding, x, bias, y,
             [=](int64_t o, int64_t c, int64_t tap) { return w[(o * s->inner + c) * 9 + tap]; });
}

void conv_grad_input(const float* dy, const float* w, float* dx, const Shape* s) {
    if (!by_winograd(*s)) return direct_grad_input(*s, dy, w, dx);
    winograd(s->images, s->outer, s->out_height(), s->out_width(), s->inner, 2 - s->padding, dy, nullptr, dx,
             [=](int64_t c, int64_t o, int64_t tap) { return w[(o * s->inner + c) * 9 + 8 - tap]; });
}

void conv_grad_weight(const float* x, const float* dy, float* dw, const Shape* s) {
    if (!by_winograd(*s)) return direct_grad_weight(*s, x, dy, dw);
    winograd_grad_weight(*s, x, dy, dw);
}

// db[o] = sum of dy[o]
void conv_grad_bias(const float* dy, float* db, const Shape* s) {
    const int64_t step = s->out_height() * s->out_width() * s->images;
    for (int64_t o = 0; o < s->outer; ++o, dy += step) {
        Vector sums[VECTORS]{};
        for (int64_t first = 0; first < step; first += IMAGES)
            for (int64_t v = 0, n = first; v < VECTORS && n < step; ++v, n += LANES)
                sums[v] += load(dy + n, std::min<int64_t>(LANES, step - n));
        db[o] = 0;
        for (const Vector& part : sums) db[o] += sum(part);
    }
}

void norm_forward(const float* x, const float* shortcut, const float* gamma, const float* beta, float* y, float* mean,
                  float* rstd, const NormShape* s) {
    over_images(s->images, [&](auto slice, int64_t first) {
        norm_forward(*s, x + first, shortcut ? shortcut + first : nullptr, gamma, beta, y + first, mean + first, rstd + first,
                     slice);
    });
}

void norm_backward(const float* g, const float* x, const float* y, const float* gamma, const float* beta, const float* mean,
                   const float* rstd, float* dx, float* dshortcut, float* dgamma, float* dbeta, const NormShape* s) {
    std::fill_n(dgamma, s->channels, 0.0f);
    std::fill_n(dbeta, s->channels, 0.0f);
    over_images(s->images, [&](auto slice, int64_t first) {
        norm_backward(*s, g + first, x + first, y ? y + first : nullptr, gamma, beta, mean + first, rstd + first, dx + first,
                      dshortcut ? dshortcut + first : nullptr, dgamma, dbeta, slice);
    });
}

void pool_forward(const float* x, float* y, float* where, const PoolShape* s) { pool_forward(*s, x, y, where); }

void pool_backward(const float* g, const float* y, const float* where, float* dx, const PoolShape* s) {
    pool_backward(*s, g, y, where, dx);
}

void round_forward(const float* x, const float* step, float* y, float* inside, const RoundShape* s) {
    round_forward(*s, x, step, y, inside);
}

void draw(float* u, const Draw* d) { draw(*d, u); }

}  // extern "C"
