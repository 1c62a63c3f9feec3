/* The first instructions of a Cortex-M, then the program on the files `inputs` and `outputs`; counts instructions.
 * Under QEMU with -icount shift=0 an instruction takes a nanosecond, and SysTick runs at 25 MHz: 40 instructions a tick. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include MODEL_HEADER

extern uint32_t data_source[], data_start[], data_end[], bss_start[], bss_end[], stack_top[];
extern void initialise_monitor_handles(void);

static float input[INPUT_SIZE], output[OUTPUT_SIZE];

static volatile uint32_t *const systick = (uint32_t *)0xE000E010;
static volatile uint32_t turns;

static int process(void)
{
    FILE *from = fopen("inputs", "rb"), *to = fopen("outputs", "wb");
    if (from == NULL || to == NULL) {
        return 1;
    }
    while (fread(input, sizeof input, 1, from) == 1) {
        systick[1] = 0xFFFFFF;
        systick[2] = 0;
        systick[0] = 7;
        turns = 0;
        const uint32_t before = systick[2];
        if (RUN(input, output) != 0) {
            return 2;
        }
        const uint32_t after = systick[2];
        systick[0] = 0;
        printf("%lu\n", (unsigned long)(((before - after) & 0xFFFFFF) + (turns << 24)) * 40);
        if (fwrite(output, sizeof output, 1, to) != 1) {
            return 3;
        }
    }
    return fclose(to) == 0 ? 0 : 4;
}

void reset(void)
{
#ifdef __ARM_FP
    *(volatile uint32_t *)0xE000ED88 |= 0xF << 20;
    __asm volatile("dsb; isb");
#endif
    uint32_t *source = data_source;
    for (uint32_t *p = data_start; p < data_end; p++) {
        *p = *source++;
    }
    for (uint32_t *p = bss_start; p < bss_end; p++) {
        *p = 0;
    }
    initialise_monitor_handles();
    exit(process());
}

static void tick(void)
{
    turns++;
}

static void fault(void)
{
    exit(9);
}

__attribute__((section(".vectors"), used)) static void *const vectors[] = {
    stack_top, (void *)reset, (void *)fault, (void *)fault, (void *)fault, (void *)fault, (void *)fault,
    0, 0, 0, 0, 0, 0, 0, 0, (void *)tick};
