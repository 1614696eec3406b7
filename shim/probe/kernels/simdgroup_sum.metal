kernel void check_simdgroup_sum(device const float *input [[buffer(0)]],
                                device float *output [[buffer(1)]],
                                uint thread_index [[thread_position_in_threadgroup]]) {
    output[thread_index] = simd_sum(input[thread_index]);
}
