kernel void check_no_copy_buffer(device const uint *input [[buffer(0)]],
                                 device uint *output [[buffer(1)]],
                                 uint thread_index [[thread_position_in_threadgroup]],
                                 uint threads [[threads_per_threadgroup]]) {
    for (uint word = thread_index; word < input[0]; word += threads) {
        output[word] = output[word] * 3 + 1;
    }
}
