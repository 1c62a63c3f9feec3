/* What a compiler may call of a C library; compiled so that it does not see these loops as calls of themselves. */
#include <stdint.h>

#include "string.h"

void *memcpy(void *restrict to, const void *restrict from, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        ((uint8_t *)to)[i] = ((const uint8_t *)from)[i];
    }
    return to;
}

void *memset(void *to, int value, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        ((uint8_t *)to)[i] = (uint8_t)value;
    }
    return to;
}
