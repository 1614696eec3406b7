//! Stock llama.cpp in guests.

#![cfg(target_os = "linux")]

mod stock;
