//! What few queues need, and those that do not should not pay for.

use std::fmt;
use std::ops::{Deref, DerefMut};

/// A value that takes the room of a pointer until it is first changed. Until then it reads as empty.
///
/// There may be a hundred thousand queues, and most of what a queue can have most of them never do: dead letters on their
/// way, deduplication ids, groups, consumers.
pub struct Rare<T> {
    value: Option<Box<T>>,
}

/// A value with nothing in it that anybody can look at.
pub trait Empty: Default + 'static {
    /// That value.
    const EMPTY: &'static Self;
}

impl<T> Default for Rare<T> {
    fn default() -> Self {
        Self { value: None }
    }
}

impl<T> Rare<T> {
    /// Whether nothing was put into it yet.
    #[must_use]
    pub const fn is_unused(&self) -> bool {
        self.value.is_none()
    }
}

impl<T: Default> Rare<T> {
    /// Takes the value out and leaves an empty one, without any room.
    pub fn take(&mut self) -> T {
        self.value.take().map_or_else(T::default, |value| *value)
    }
}

impl<T: Empty> Deref for Rare<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.value.as_deref().unwrap_or(T::EMPTY)
    }
}

impl<T: Empty> DerefMut for Rare<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        self.value.get_or_insert_with(Box::default)
    }
}

impl<T: Empty + fmt::Debug> fmt::Debug for Rare<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Empty for Vec<u8> {
        const EMPTY: &'static Self = &Self::new();
    }

    #[test]
    fn it_takes_room_only_once_it_is_changed() {
        let mut rare: Rare<Vec<u8>> = Rare::default();
        assert!(rare.is_empty() && rare.is_unused());
        rare.push(7);
        assert_eq!(*rare, [7]);
        assert_eq!(rare.take(), [7]);
        assert!(rare.is_unused());
    }
}
