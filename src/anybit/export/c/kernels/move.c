static void move(const float *x, float *y, const int *size, const int *from, const int *to)
{
    for (int i = 0; i < size[0]; i++) {
        for (int j = 0; j < size[1]; j++) {
            for (int k = 0; k < size[2]; k++) {
                for (int n = 0; n < size[3]; n++) {
                    y[i * to[0] + j * to[1] + k * to[2] + n * to[3]] =
                        x[i * from[0] + j * from[1] + k * from[2] + n * from[3]];
                }
            }
        }
    }
}
