/* Reads examples from one file and writes the outputs to another, both float32 without a header. */
#include <stdio.h>

#include "$header"

int main(int count, char **names)
{
    static float input[ANYBIT_${NAME}_INPUT_SIZE], output[ANYBIT_${NAME}_OUTPUT_SIZE];
    FILE *from = count == 3 ? fopen(names[1], "rb") : NULL, *to = count == 3 ? fopen(names[2], "wb") : NULL;
    if (from == NULL || to == NULL) {
        return 1;
    }
    while (fread(input, sizeof input, 1, from) == 1) {
        if (anybit_${name}_run(input, output) != 0 || fwrite(output, sizeof output, 1, to) != 1) {
            return 2;
        }
    }
    return fclose(to) == 0 ? 0 : 3;
}
