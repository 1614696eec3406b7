kernel void check_threadgroup_memory(device const uint *input [[buffer(0)]],
                                     device uint *output [[buffer(1)]],
                                     threadgroup uint *memory [[threadgroup(0)]],
                                     uint thread_index [[thread_position_in_threadgroup]],
                                     uint threads [[threads_per_threadgroup]]) {
    for (uint word = thread_index; word < input[0]; word += threads) {
        memory[word] = word * 2654435761u;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    uint sum = 0;
    for (uint word = threads - 1 - thread_index; word < input[0]; word += threads) {
        sum += memory[word];
    }
    output[thread_index] = sum;
}
