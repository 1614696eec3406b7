//! Stock llama.cpp in guests, computing on the host.

#![cfg(target_os = "linux")]

mod answer;
mod ioctls;
mod recycled;
mod steady;
mod stock;
mod testbed;
mod trouble;
