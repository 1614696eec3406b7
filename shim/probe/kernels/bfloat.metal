kernel void check_bfloat(device const float *input [[buffer(0)]],
                         device float *output [[buffer(1)]],
                         uint thread_index [[thread_position_in_threadgroup]]) {
    bfloat narrow = bfloat(input[thread_index]);
    output[thread_index] = float(narrow);
}
