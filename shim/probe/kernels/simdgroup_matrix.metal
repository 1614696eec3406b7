kernel void check_simdgroup_matrix(device const float *input [[buffer(0)]],
                                   device float *output [[buffer(1)]]) {
    simdgroup_float8x8 left, right;
    simdgroup_float8x8 product = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    simdgroup_load(left, input, 8);
    simdgroup_load(right, input + 64, 8);
    simdgroup_multiply_accumulate(product, left, right, product);
    simdgroup_store(product, output, 8);
}
