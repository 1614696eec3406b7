//! Stock llama.cpp in guests, computing on the host.

#![cfg(target_os = "linux")]

mod answer;
mod stock;
mod testbed;
mod trouble;
