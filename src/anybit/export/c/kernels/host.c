/* Reads examples from one file and writes the outputs to another, both float32 without a header. Prints the microseconds of
 * processor time per example that every layer took, where the model was compiled to tell when one is done. */
#include <stdio.h>
#include <time.h>

#include "$header"

static clock_t before;
static double spent[$layers];

void anybit_mark(int layer);

void anybit_mark(int layer)
{
    const clock_t now = clock();
    spent[layer] += (double)(now - before);
    before = now;
}

int main(int count, char **names)
{
    static float input[ANYBIT_${NAME}_INPUT_SIZE], output[ANYBIT_${NAME}_OUTPUT_SIZE];
    FILE *from = count == 3 ? fopen(names[1], "rb") : NULL, *to = count == 3 ? fopen(names[2], "wb") : NULL;
    int examples = 0;
    if (from == NULL || to == NULL) {
        return 1;
    }
    for (; fread(input, sizeof input, 1, from) == 1; examples++) {
        before = clock();
        if (anybit_${name}_run(input, output) != 0 || fwrite(output, sizeof output, 1, to) != 1) {
            return 2;
        }
    }
    for (int i = 0; i < $layers; i++) {
        printf("%.17g\n", examples ? spent[i] / CLOCKS_PER_SEC * 1e6 / examples : 0.0);
    }
    return fclose(to) == 0 ? 0 : 3;
}
