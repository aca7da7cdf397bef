//! What is refused when it is compiled: types that cannot fit, names that do not exist, what CEL has and this has not.

use crate::check;

#[test]
fn types_that_cannot_fit() {
    check(&[
        ("i + s", "refused: line 1, column 3: '+' does not take an int and a string"),
        ("i + 'x'", "refused: line 1, column 3: '+' does not take an int and a string"),
        ("1 + 2 + 'x'", "refused: line 1, column 7: '+' does not take an int and a string"),
        ("s - s", "refused: line 1, column 3: '-' does not take a string and a string"),
        ("s * 2", "refused: line 1, column 3: '*' does not take a string and an int"),
        ("d % 2", "refused: line 1, column 3: '%' does not take a double and an int"),
        ("n % 2", "0"),
        ("b + b", "refused: line 1, column 3: '+' does not take a bool and a bool"),
        ("null + 1", "refused: line 1, column 6: '+' does not take null and an int"),
        ("[1] + [2]", "refused: line 1, column 5: '+' does not take a list and a list"),
        ("j.i + b", "refused: line 1, column 5: '+' does not take any value and a bool"),
        ("1 < 'a'", "refused: line 1, column 3: '<' does not take an int and a string"),
        ("null < null", "refused: line 1, column 6: '<' does not take null and null"),
        ("[1] < [2]", "refused: line 1, column 5: '<' does not take a list and a list"),
        ("1 < 2 < 3", "refused: line 1, column 7: '<' does not take a bool and an int"),
        ("1 == 'a'", "refused: line 1, column 3: '==' does not take an int and a string"),
        ("i != null", "refused: line 1, column 3: '!=' does not take an int and null"),
        ("b == 1", "refused: line 1, column 3: '==' does not take a bool and an int"),
        ("[1] == 1", "refused: line 1, column 5: '==' does not take a list and an int"),
        ("i && b", "refused: line 1, column 1: '&&' does not take an int; it takes a bool"),
        ("b && b && s", "refused: line 1, column 11: '&&' does not take a string; it takes a bool"),
        ("b || 1", "refused: line 1, column 6: '||' does not take an int; it takes a bool"),
        ("!i", "refused: line 1, column 1: '!' does not take an int; it takes a bool"),
        ("-s", "refused: line 1, column 1: '-' does not take a string; it takes a number"),
        ("-b", "refused: line 1, column 1: '-' does not take a bool; it takes a number"),
        ("!-1", "refused: line 1, column 2: found '-' where a value is expected"),
        ("-!b", "refused: line 1, column 2: found '!' where a value is expected"),
        ("i ? 1 : 2", "refused: line 1, column 3: '?' does not take an int; it takes a bool"),
        (
            "b ? 1 : 'a'",
            "refused: line 1, column 3: the branches of '?' are an int and a string; they must be of one type",
        ),
        ("(b ? 1 : 2.5) + s", "refused: line 1, column 15: '+' does not take a number and a string"),
        ("s.size() + s", "refused: line 1, column 10: '+' does not take an int and a string"),
        ("1 +\n\n  x", "refused: line 3, column 3: unknown variable 'x'; there are b, i, d, n, s, j, few"),
    ]);
}

#[test]
fn names_that_do_not_exist() {
    check(&[
        ("x", "refused: line 1, column 1: unknown variable 'x'; there are b, i, d, n, s, j, few"),
        ("1 + xyz", "refused: line 1, column 5: unknown variable 'xyz'; there are b, i, d, n, s, j, few"),
        ("math", "refused: line 1, column 1: unknown variable 'math'; there are b, i, d, n, s, j, few"),
        ("math.x", "refused: line 1, column 1: unknown variable 'math'; there are b, i, d, n, s, j, few"),
        (
            "foo(1)",
            "refused: line 1, column 1: unknown function 'foo'; there are size, contains, startsWith, endsWith, matches, \
             lowerAscii, upperAscii, trim, int, double, string, min, max, abs, math.least, math.greatest, math.abs and has",
        ),
        (
            "j.i()",
            "refused: line 1, column 3: unknown function 'i'; there are size, contains, startsWith, endsWith, matches, \
             lowerAscii, upperAscii, trim, int, double, string, min, max, abs, math.least, math.greatest, math.abs and has",
        ),
    ]);
}

#[test]
fn what_cel_has_besides() {
    check(&[
        (
            "j.l.all(x, x > 1)",
            "refused: line 1, column 5: 'all' is a macro with a loop, and there are no loops here",
        ),
        (
            "j.l.exists(x, x > 1)",
            "refused: line 1, column 5: 'exists' is a macro with a loop, and there are no loops here",
        ),
        (
            "j.l.exists_one(x, x > 1)",
            "refused: line 1, column 5: 'exists_one' is a macro with a loop, and there are no loops here",
        ),
        (
            "j.l.map(x, x * 2)",
            "refused: line 1, column 5: 'map' is a macro with a loop, and there are no loops here",
        ),
        (
            "j.l.filter(x, x > 1)",
            "refused: line 1, column 5: 'filter' is a macro with a loop, and there are no loops here",
        ),
        (
            "timestamp('2024-01-01T00:00:00Z')",
            "refused: line 1, column 1: CEL's function 'timestamp' is not supported here",
        ),
        ("duration('1h')", "refused: line 1, column 1: CEL's function 'duration' is not supported here"),
        ("type(1)", "refused: line 1, column 1: CEL's function 'type' is not supported here"),
        ("uint(1)", "refused: line 1, column 1: CEL's function 'uint' is not supported here"),
        ("s.split(',')", "refused: line 1, column 3: CEL's function 'split' is not supported here"),
        ("math.ceil(1.5)", "refused: line 1, column 6: CEL's function 'ceil' is not supported here"),
        ("j.?i", "refused: line 1, column 3: found '?' where the name of a field or a method is expected"),
    ]);
}
