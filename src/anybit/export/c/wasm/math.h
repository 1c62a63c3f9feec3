/* sqrtf is an instruction of WebAssembly; the others are in libm.c. */
#define sqrtf(x) __builtin_sqrtf(x)

float expf(float x);
float expm1f(float x);
float logf(float x);
float tanhf(float x);
float erff(float x);
