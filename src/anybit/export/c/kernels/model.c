/* $about */

#include "$header"

$includes
$types
$constants
$memory
$kernels
/* Compiled with -DANYBIT_MARK=f, void f(int) is called after every layer, with its number in export.json. */
#if defined(ANYBIT_MARK)
void ANYBIT_MARK(int layer);
#define DONE(layer) ANYBIT_MARK(layer);
#else
#define DONE(layer)
#endif

int anybit_${name}_run(const float *input, float *output)
{
    if (input == 0 || output == 0) {
        return -1;
    }
$calls
    return 0;
}
