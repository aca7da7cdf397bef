//! What a list can be asked for: some columns, an order, a part of the names, a page. As RabbitMQ's management API has it.

use std::cmp::Ordering;

use axum::Json;
use axum::response::{IntoResponse, Response};
use regex::{Regex, RegexBuilder};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::error::ApiError;
use super::question::{Word, Words};

const PAGE_SIZE_DEFAULT: usize = 100;
/// RabbitMQ's own.
const PAGE_SIZE_MAX: usize = 500;
/// A pattern is compiled for each request: bounds the memory for that.
const PATTERN_BYTES_MAX: usize = 1024;
const COMPILED_BYTES_MAX: usize = 1 << 20;
/// The most columns that are looked for; no object has so many.
const COLUMNS_MAX: usize = 128;

/// The question behind the address of a list. Values are texts until they are looked at, so that the answer can name the
/// one that is wrong.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ListQuery {
    columns: Option<String>,
    sort: Option<String>,
    sort_reverse: Option<String>,
    page: Option<String>,
    page_size: Option<String>,
    name: Option<String>,
    use_regex: Option<String>,
}

impl Words for ListQuery {
    const WORDS: &'static [Word] = &[
        ("columns", "the fields that are wanted, with commas between them"),
        ("sort", "the field by which the list is ordered"),
        ("sort_reverse", "true: the other way round"),
        ("page", "a page of the list, counted from 1"),
        ("page_size", "how many are on a page (100, at most 500)"),
        ("name", "with page: only those with this in their names"),
        ("use_regex", "true: name is a regular expression"),
    ];
}

/// Which part of a list is wanted.
#[derive(Debug)]
pub(super) struct Page {
    number: usize,
    size: usize,
    name: Option<NameFilter>,
}

#[derive(Debug)]
enum NameFilter {
    /// Somewhere in the name, whatever the case.
    Contains(String),
    Matches(Regex),
}

impl NameFilter {
    fn admits(&self, name: &str) -> bool {
        match self {
            Self::Contains(part) => name.to_lowercase().contains(part),
            Self::Matches(pattern) => pattern.is_match(name),
        }
    }
}

impl ListQuery {
    /// The page that is asked for, if one is.
    pub(super) fn page(&self) -> Result<Option<Page>, ApiError> {
        let Some(page) = &self.page else { return Ok(None) };
        let (number, size) = (whole(page)?, self.page_size.as_deref().map(whole).transpose()?);
        let is_right = number > 0 && size.is_none_or(|size| (1..=PAGE_SIZE_MAX as i64).contains(&size));
        if !is_right {
            let size = size.map_or("undefined".to_owned(), |size| size.to_string());
            return Err(ApiError::bad(
                "invalid_pagination_parameters",
                format!("Invalid pagination parameters: page number {number}, page size {size}"),
            ));
        }
        let (number, size) = (usize::try_from(number), size.map(usize::try_from).transpose());
        let (Ok(number), Ok(size)) = (number, size) else { return Err(wrong_page()) };
        let size = size.unwrap_or(PAGE_SIZE_DEFAULT);
        let name = self.name.as_deref().filter(|name| !name.is_empty()).map(|name| self.filter(name));
        Ok(Some(Page { number, size, name: name.transpose()? }))
    }

    fn filter(&self, name: &str) -> Result<NameFilter, ApiError> {
        if !is_true(self.use_regex.as_deref()) {
            return Ok(NameFilter::Contains(name.to_lowercase()));
        }
        if name.len() > PATTERN_BYTES_MAX {
            return Err(ApiError::bad_request(format!(
                "a regular expression has at most {PATTERN_BYTES_MAX} bytes"
            )));
        }
        let built = RegexBuilder::new(name).size_limit(COMPILED_BYTES_MAX).build();
        built.map(NameFilter::Matches).map_err(|_| wrong_page())
    }

    /// Whether the list is wanted by name, as it is made.
    pub(super) fn is_by_name(&self) -> bool {
        self.sort.as_deref().is_none_or(|sort| sort.is_empty() || sort == "name")
    }

    fn is_reversed(&self) -> bool {
        is_true(self.sort_reverse.as_deref())
    }

    fn sort(&self, items: &mut [Value]) {
        let Some(column) = self.sort.as_deref().filter(|column| !column.is_empty()) else { return };
        let path: Vec<&str> = column.split('.').collect();
        items.sort_by(|a, b| compare(at(a, &path), at(b, &path)));
        if self.is_reversed() {
            items.reverse();
        }
    }

    /// Only the columns that are wanted.
    pub(super) fn shown(&self, item: Value) -> Value {
        let Some(columns) = self.columns.as_deref().filter(|columns| !columns.is_empty()) else {
            return item;
        };
        let mut shown = Value::Object(Map::new());
        for column in columns.split(',').take(COLUMNS_MAX) {
            let path: Vec<&str> = column.split('.').collect();
            if let Some(found) = at(&item, &path) {
                put(&mut shown, &path, found.clone());
            }
        }
        shown
    }

    /// The answer to a question for a list.
    pub(super) fn answer(&self, mut items: Vec<Value>) -> Result<Response, ApiError> {
        let Some(page) = self.page()? else {
            self.sort(&mut items);
            let shown: Vec<Value> = items.into_iter().map(|item| self.shown(item)).collect();
            return Ok(Json(shown).into_response());
        };
        let total = items.len();
        items.retain(|item| page.admits(item.get("name").and_then(Value::as_str).unwrap_or_default()));
        self.sort(&mut items);
        let filtered = items.len();
        let range = page.range(filtered)?;
        let items: Vec<Value> = items.drain(range).map(|item| self.shown(item)).collect();
        Ok(Json(page.envelope(total, filtered, &items)).into_response())
    }

    /// The same for a list by name of which only the names are known yet: `item` makes those of the page.
    pub(super) fn answer_by_name<N>(
        &self,
        mut names: Vec<N>,
        name: impl Fn(&N) -> &str,
        item: impl Fn(&N) -> Option<Value>,
    ) -> Result<Response, ApiError> {
        let Some(page) = self.page()? else {
            if self.is_reversed() && self.sort.is_some() {
                names.reverse();
            }
            let shown: Vec<Value> = names.iter().filter_map(item).map(|item| self.shown(item)).collect();
            return Ok(Json(shown).into_response());
        };
        let total = names.len();
        names.retain(|one| page.admits(name(one)));
        if self.is_reversed() && self.sort.is_some() {
            names.reverse();
        }
        let filtered = names.len();
        let range = page.range(filtered)?;
        let items: Vec<Value> = names[range].iter().filter_map(item).map(|item| self.shown(item)).collect();
        Ok(Json(page.envelope(total, filtered, &items)).into_response())
    }
}

impl Page {
    /// Whether a name is wanted.
    pub(super) fn admits(&self, name: &str) -> bool {
        self.name.as_ref().is_none_or(|filter| filter.admits(name))
    }

    /// The places of this page in a list of so many.
    fn range(&self, len: usize) -> Result<std::ops::Range<usize>, ApiError> {
        let first = (self.number - 1).saturating_mul(self.size);
        if first >= len && self.number > 1 {
            let (page, size) = (self.number, self.size);
            return Err(ApiError::bad(
                "page_out_of_range",
                format!("Page out of range, page: {page} page size: {size}, len: {len}"),
            ));
        }
        Ok(first..first.saturating_add(self.size).min(len))
    }

    fn envelope(&self, total: usize, filtered: usize, items: &[Value]) -> Value {
        json!({
            "filtered_count": filtered,
            "item_count": items.len(),
            "items": items,
            "page": self.number,
            "page_count": filtered.div_ceil(self.size).max(1),
            "page_size": self.size,
            "total_count": total,
        })
    }
}

fn is_true(text: Option<&str>) -> bool {
    text == Some("true")
}

fn whole(text: &str) -> Result<i64, ApiError> {
    text.parse().map_err(|_| wrong_page())
}

fn wrong_page() -> ApiError {
    ApiError::bad_request("Pagination parameters are invalid")
}

/// The value at the end of a path of names.
fn at<'v>(item: &'v Value, path: &[&str]) -> Option<&'v Value> {
    path.iter().try_fold(item, |value, name| value.get(name))
}

fn put(item: &mut Value, path: &[&str], value: Value) {
    let Some((name, rest)) = path.split_first() else { return };
    let Value::Object(object) = item else { return };
    if rest.is_empty() {
        object.insert((*name).to_owned(), value);
        return;
    }
    put(object.entry((*name).to_owned()).or_insert_with(|| Value::Object(Map::new())), rest, value);
}

/// Numbers before texts before everything else, as Erlang has it, and what is missing first of all.
fn compare(a: Option<&Value>, b: Option<&Value>) -> Ordering {
    let rank = |value: Option<&Value>| match value {
        None => 0,
        Some(Value::Number(_)) => 1,
        Some(Value::Bool(_)) => 2,
        Some(Value::Null) => 3,
        Some(Value::Object(_)) => 4,
        Some(Value::Array(_)) => 5,
        Some(Value::String(_)) => 6,
    };
    match (a, b) {
        (Some(Value::Number(a)), Some(Value::Number(b))) => {
            let (a, b) = (a.as_f64().unwrap_or_default(), b.as_f64().unwrap_or_default());
            a.total_cmp(&b)
        }
        (Some(Value::String(a)), Some(Value::String(b))) => a.cmp(b),
        (Some(Value::Bool(a)), Some(Value::Bool(b))) => a.cmp(b),
        (a, b) => rank(a).cmp(&rank(b)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(pairs: &[(&str, &str)]) -> ListQuery {
        let object: Map<String, Value> =
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).into())).collect();
        serde_json::from_value(Value::Object(object)).unwrap()
    }

    #[test]
    fn every_word_is_read_and_every_one_that_is_read_is_described() {
        let given: Vec<(&str, &str)> = ListQuery::WORDS.iter().map(|(word, _)| (*word, "x")).collect();
        let fields = format!("{:?}", ListQuery::default()).matches("None").count();
        assert_eq!(format!("{:?}", query(&given)).matches("Some").count(), fields);
        assert_eq!(given.len(), fields);
    }

    async fn answered(pairs: &[(&str, &str)], items: Vec<Value>) -> Value {
        let response = query(pairs).answer(items).unwrap();
        let body = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
        serde_json::from_slice(&body).unwrap()
    }

    fn items() -> Vec<Value> {
        vec![
            json!({"name": "b", "n": 2, "s": {"x": "q"}}),
            json!({"name": "A1", "n": 10, "s": {"x": "p"}}),
            json!({"name": "c", "s": {}}),
        ]
    }

    #[tokio::test]
    async fn a_list_is_sorted_and_shows_some_columns() {
        let by_number = answered(&[("sort", "n"), ("columns", "name")], items()).await;
        assert_eq!(by_number, json!([{"name": "c"}, {"name": "b"}, {"name": "A1"}]));
        let nested =
            answered(&[("sort", "s.x"), ("sort_reverse", "true"), ("columns", "s.x,n")], items()).await;
        assert_eq!(nested, json!([{"n": 2, "s": {"x": "q"}}, {"n": 10, "s": {"x": "p"}}, {}]));
    }

    #[tokio::test]
    async fn a_page_tells_how_many_there_are() {
        let pairs = [("page", "2"), ("page_size", "2"), ("sort", "name"), ("columns", "name")];
        assert_eq!(
            answered(&pairs, items()).await,
            json!({
                "filtered_count": 3, "item_count": 1, "items": [{"name": "c"}], "page": 2, "page_count": 2,
                "page_size": 2, "total_count": 3
            })
        );
        let found = answered(&[("page", "1"), ("name", "a"), ("columns", "name")], items()).await;
        assert_eq!((&found["items"], &found["total_count"]), (&json!([{"name": "A1"}]), &json!(3)));
        let found = answered(&[("page", "1"), ("name", "^[bc]$"), ("use_regex", "true")], items()).await;
        assert_eq!(found["filtered_count"], json!(2));
        let empty = answered(&[("page", "1"), ("name", "zzz")], items()).await;
        assert_eq!((&empty["items"], &empty["page_count"]), (&json!([]), &json!(1)));
    }

    #[test]
    fn what_is_no_page_is_refused() {
        for pairs in [
            &[("page", "0")][..],
            &[("page", "x")],
            &[("page", "-1")],
            &[("page", "1"), ("page_size", "501")],
            &[("page", "9"), ("page_size", "2")],
            &[("page", "1"), ("name", "("), ("use_regex", "true")],
            &[("page", "1"), ("name", "((a{1000}){1000}){1000}"), ("use_regex", "true")],
        ] {
            assert!(query(pairs).answer(items()).is_err(), "{pairs:?}");
        }
    }

    #[test]
    fn columns_and_patterns_are_bounded() {
        let many: Vec<String> = (0..COLUMNS_MAX + 2).map(|number| format!("c{number}")).collect();
        let item: Map<String, Value> = many.iter().map(|name| (name.clone(), json!(1))).collect();
        let shown = query(&[("columns", &many.join(","))]).shown(Value::Object(item));
        assert_eq!(shown.as_object().unwrap().len(), COLUMNS_MAX);
        let long = "a".repeat(PATTERN_BYTES_MAX);
        let matching = |name: &str| query(&[("page", "1"), ("name", name), ("use_regex", "true")]).page();
        assert!(matching(&long).is_ok());
        assert!(matching(&format!("{long}a")).is_err());
    }

    #[test]
    fn values_of_any_kind_have_one_order() {
        let values = [json!(null), json!(true), json!(false), json!(1), json!("a"), json!({}), json!([])];
        let all: Vec<Option<&Value>> = values.iter().map(Some).chain([None]).collect();
        for a in &all {
            for b in &all {
                assert_eq!(compare(*a, *b), compare(*b, *a).reverse(), "{a:?} {b:?}");
                for c in all.iter().filter(|c| compare(*a, *b).is_le() && compare(*b, **c).is_le()) {
                    assert!(compare(*a, *c).is_le(), "{a:?} {b:?} {c:?}");
                }
            }
        }
    }
}
