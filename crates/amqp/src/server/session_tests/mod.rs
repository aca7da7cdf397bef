//! The rules of a session, without sockets: frames and events go in, frames come out, and the time is what a test says.

mod channels;
mod disk;
mod kept_state;
mod rig;
mod steps;
mod time;
