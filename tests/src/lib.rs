//! What the tests on real things share.
