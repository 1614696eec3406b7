//! Stock llama.cpp in guests, computing on the host.

#![cfg(target_os = "linux")]

mod answer;
mod ioctls;
mod recycled;
mod steady;
mod stock;
mod store;
mod testbed;
mod trouble;
