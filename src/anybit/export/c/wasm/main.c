/* Memory for one example, and the network on it. */
#include "$header"

static float given[ANYBIT_${NAME}_INPUT_SIZE], found[ANYBIT_${NAME}_OUTPUT_SIZE];

__attribute__((export_name("input"))) float *input(void)
{
    return given;
}

__attribute__((export_name("output"))) float *output(void)
{
    return found;
}

__attribute__((export_name("input_size"))) int input_size(void)
{
    return ANYBIT_${NAME}_INPUT_SIZE;
}

__attribute__((export_name("output_size"))) int output_size(void)
{
    return ANYBIT_${NAME}_OUTPUT_SIZE;
}

__attribute__((export_name("run"))) int run(void)
{
    return anybit_${name}_run(given, found);
}
