//! Limits of this crate, each with its reason.

/// A password: longer than anybody types, and too short to make hashing it slow.
pub(crate) const PASSWORD_BYTES_MAX: usize = 1_024;
/// Passwords that are being hashed at once take a processor and [`HASH_MEMORY_KIB_MAX`] each; the others wait.
pub(crate) fn hashing_max() -> usize {
    std::thread::available_parallelism().map_or(1, |count| count.get().div_ceil(2)).min(4)
}
/// Logins that wait for that. More are refused: they would wait for longer than a handshake may take.
pub(crate) const HASHING_WAITING_MAX: usize = 256;
/// What a hash that somebody brings may ask for.
pub(crate) const HASH_MEMORY_KIB_MAX: u32 = 64 * 1024;
/// The same, for its passes.
pub(crate) const HASH_PASSES_MAX: u32 = 16;
/// A token that somebody else has signed: larger than any that is in use, and small enough for AMQP's first frame.
pub(crate) const BEARER_BYTES_MAX: usize = 12 * 1_024;
/// How far the clocks of those who sign tokens may be off.
pub(crate) const OAUTH_LEEWAY_S: u64 = 5;
/// A file of public keys, each of which has some hundred bytes.
pub(crate) const OAUTH_KEYS_BYTES_MAX: usize = 1 << 20;
/// Keys in it: a token that names none is tried with all of them.
pub(crate) const OAUTH_KEYS_MAX: usize = 64;
/// Checked passwords that are remembered: twice this, at some 100 bytes each.
pub(crate) const CHECKED_MAX: usize = 8_192;
