//! Sorting on a small stack.
//!
//! `slice::sort_unstable` is a quicksort: how deep it goes is up to whoever has chosen the order, and each level has
//! room for a small sort on the stack, a kilobyte for elements of 16 bytes. This is a heap sort, which needs nothing.

/// Sorts `items` by their keys.
pub fn sort_by_key<T, K: Ord>(items: &mut [T], key: impl Fn(&T) -> K) {
    for root in (0..items.len() / 2).rev() {
        sift_down(items, root, &key);
    }
    for end in (1..items.len()).rev() {
        items.swap(0, end);
        sift_down(items.get_mut(..end).unwrap_or_default(), 0, &key);
    }
}

/// The item at `root` goes down until none below it has a larger key.
fn sift_down<T, K: Ord>(heap: &mut [T], mut root: usize, key: &impl Fn(&T) -> K) {
    loop {
        let children = [2 * root + 1, 2 * root + 2].into_iter().filter(|child| *child < heap.len());
        let Some(largest) = children.max_by_key(|child| key(&heap[*child])) else { return };
        if key(&heap[largest]) <= key(&heap[root]) {
            return;
        }
        heap.swap(root, largest);
        root = largest;
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    #[test]
    fn it_sorts() {
        let mut seed = 1_u32;
        let mut next = || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            seed >> 20
        };
        for len in (0..40).chain([255, 256, 1000]) {
            for span in [1, 7, 4096] {
                let mut items: Vec<_> = (0..len).map(|n| (next() % span, n)).collect();
                let mut sorted = items.clone();
                sorted.sort_unstable();
                sort_by_key(&mut items, |item| *item);
                assert_eq!(items, sorted);
                sort_by_key(&mut items, |(_, n)| len - n);
                assert!(items.iter().map(|(_, n)| *n).eq((0..len).rev()));
            }
        }
    }
}
