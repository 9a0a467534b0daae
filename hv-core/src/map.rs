//! Maps of which nothing stays when they are empty.

use alloc::collections::BTreeMap;

/// Takes an entry out of a map. An empty one then has no memory: by itself it keeps a node for its next entry, and so
/// what is free when a domain has gone would not be what was free before it came.
pub fn take<K: Ord, V>(map: &mut BTreeMap<K, V>, key: &K) -> Option<V> {
    let value = map.remove(key);
    if map.is_empty() {
        *map = BTreeMap::new();
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_is_gone_and_the_rest_stays() {
        let mut map = BTreeMap::from([(1, 'a'), (2, 'b')]);
        assert_eq!((take(&mut map, &3), take(&mut map, &1), take(&mut map, &1)), (None, Some('a'), None));
        assert_eq!(map, BTreeMap::from([(2, 'b')]));
        assert_eq!((take(&mut map, &2), take(&mut map, &2)), (Some('b'), None));
        map.insert(4, 'd');
        assert_eq!(map, BTreeMap::from([(4, 'd')]));
    }
}
