//! Lists in order: one sort for texts and one for numbers serves all. Each further kind of element that is sorted by itself would
//! make the wasm module some 4 KB larger.

/// The items by their texts; of several with the same one the first stays.
pub(crate) fn by_text<T>(items: Vec<T>, text: impl Fn(&T) -> &str) -> Vec<T> {
    let mut keys: Vec<(&str, usize)> = items.iter().enumerate().map(|(at, item)| (text(item), at)).collect();
    keys.sort_unstable();
    keys.dedup_by(|later, first| later.0 == first.0);
    let order: Vec<usize> = keys.into_iter().map(|(_, at)| at).collect();
    picked(items, &order)
}

/// The items by their numbers; those with the same one stay as they were.
pub(crate) fn by_number<T>(items: Vec<T>, number: impl Fn(&T) -> u64) -> Vec<T> {
    let mut keys: Vec<(u64, usize)> = items.iter().enumerate().map(|(at, item)| (number(item), at)).collect();
    keys.sort_unstable();
    let order: Vec<usize> = keys.into_iter().map(|(_, at)| at).collect();
    picked(items, &order)
}

fn picked<T>(items: Vec<T>, order: &[usize]) -> Vec<T> {
    let mut items: Vec<Option<T>> = items.into_iter().map(Some).collect();
    order.iter().filter_map(|at| items.get_mut(*at)?.take()).collect()
}

#[cfg(test)]
mod tests {
    use super::{by_number, by_text};

    #[test]
    fn the_first_of_equals_stays_or_comes_first() {
        let items = vec![("b", 1), ("a", 2), ("b", 3), ("", 4)];
        assert_eq!(by_text(items.clone(), |item| item.0), [("", 4), ("a", 2), ("b", 1)]);
        assert_eq!(by_number(items, |item| item.0.len() as u64), [("", 4), ("b", 1), ("a", 2), ("b", 3)]);
    }
}
