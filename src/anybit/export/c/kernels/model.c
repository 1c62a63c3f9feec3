/* $about */

#include "$header"

$includes
$types
$constants
$memory
$kernels
int anybit_${name}_run(const float *input, float *output)
{
    if (input == 0 || output == 0) {
        return -1;
    }
$calls
    return 0;
}
