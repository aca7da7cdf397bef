//! Functions of text, and conversions.

use crate::check;

#[test]
fn methods_of_text() {
    check(&[
        ("s.contains('ell')", "true"),
        ("s.contains('')", "true"),
        ("s.contains('Ell')", "false"),
        ("''.contains('a')", "false"),
        ("'è già'.contains('già')", "true"),
        ("s.startsWith('he')", "true"),
        ("s.startsWith('lo')", "false"),
        ("s.endsWith('lo')", "true"),
        ("s.endsWith('he')", "false"),
        ("j.title.contains('USATE')", "true"),
        ("!j.title.contains('usato')", "true"),
        ("j.title.lowerAscii().contains('usate')", "true"),
        ("s.contains(j.s)", "false"),
        ("'hello text'.contains(j.s)", "true"),
        ("'AbÈ'.lowerAscii()", r#""abÈ""#),
        ("'aBè'.upperAscii()", r#""ABè""#),
        ("s.lowerAscii()", r#""hello""#),
        ("' \\t a b \\n'.trim()", r#""a b""#),
        ("(' ' + s + ' ').trim()", r#""hello""#),
        ("'\\u00a0a\\u2003'.trim()", r#""a""#),
        ("s.trim().upperAscii().size()", "5"),
        ("'a' + 'b' + 'c'", r#""abc""#),
        ("s + ' ' + j.s", r#""hello text""#),
        ("'n' + string(i)", r#""n7""#),
        ("j.i.contains('a')", "error: 'contains' does not take an int"),
        ("s.contains(j.i)", "error: 'contains' does not take an int"),
        ("j.n.trim()", "error: 'trim' does not take null"),
        ("j.l.lowerAscii()", "error: 'lowerAscii' does not take a list"),
        ("s.contains(1)", "refused: line 1, column 3: 'contains' does not take an int; it takes a string"),
        ("i.contains('a')", "refused: line 1, column 3: 'contains' does not take an int; it takes a string"),
        ("s.contains()", "refused: line 1, column 3: 'contains' takes 1 argument, not 0"),
        ("s.contains('a', 'b')", "refused: line 1, column 3: 'contains' takes 1 argument, not 2"),
        ("contains(s, 'a')", "refused: line 1, column 1: 'contains' is a method; write text.contains(…)"),
        ("s.int()", "refused: line 1, column 3: 'int' is a function; write int(…)"),
        ("least(1, 2)", "refused: line 1, column 1: 'least' is a function; write math.least(…)"),
        ("s.contains('a',)", "refused: line 1, column 16: found ')' where a value is expected"),
    ]);
}

#[test]
fn patterns() {
    check(&[
        ("s.matches('^h.*o$')", "true"),
        ("s.matches('ell')", "true"),
        ("s.matches('^ell')", "false"),
        ("matches(s, 'l+')", "true"),
        (r"'abc123'.matches(r'\d{3}$')", "true"),
        ("j.title.matches('(?i)usat[oaei]')", "true"),
        ("''.matches('')", "true"),
        ("'è'.matches('^.$')", "true"),
        ("j.i.matches('3')", "error: 'matches' does not take an int"),
        (
            "s.matches(j.s)",
            "refused: line 1, column 13: the pattern of 'matches' must be written out as a string",
        ),
        (
            "s.matches('a' + 'b')",
            "refused: line 1, column 15: the pattern of 'matches' must be written out as a string",
        ),
        (
            "s.matches('(')",
            "refused: line 1, column 11: the pattern is no regular expression: unclosed group",
        ),
        (
            r"s.matches('(a)\\1')",
            "refused: line 1, column 11: the pattern is no regular expression: backreferences are not supported",
        ),
        (
            r"s.matches('(\\w{50}){20}')",
            "refused: line 1, column 11: the pattern takes more than 131072 bytes when compiled",
        ),
        (
            "s.matches('((((((((((((((((((((((((((((((((((a))))))))))))))))))))))))))))))))))')",
            "refused: line 1, column 11: the pattern is no regular expression: exceed the maximum number of nested parentheses/brackets (32)",
        ),
    ]);
}

#[test]
fn conversions() {
    check(&[
        ("int(3)", "3"),
        ("int(3.9)", "3"),
        ("int(-3.9)", "-3"),
        ("int('42')", "42"),
        ("int('-42')", "-42"),
        ("int(j.i)", "3"),
        ("int(d * 2)", "5"),
        ("int(-9223372036854775808.0)", "-9223372036854775808"),
        ("int(9223372036854775808.0)", "error: '9.223372036854776e18' cannot be converted to an int"),
        ("int(0.0 / 0.0)", "error: 'NaN' cannot be converted to an int"),
        ("int(1.0 / 0.0)", "error: 'inf' cannot be converted to an int"),
        ("int('4.2')", "error: '4.2' cannot be converted to an int"),
        ("int('')", "error: '' cannot be converted to an int"),
        ("int(' 1')", "error: ' 1' cannot be converted to an int"),
        ("int('9223372036854775808')", "error: '9223372036854775808' cannot be converted to an int"),
        (
            "int('a text that is far too long for an error message')",
            "error: 'a text that is far too long for an error' cannot be converted to an int",
        ),
        ("int(j.t)", "error: 'int' does not take a bool"),
        ("int(j.l)", "error: 'int' does not take a list"),
        (
            "int(b)",
            "refused: line 1, column 1: 'int' does not take a bool; it takes an int or a double or a string",
        ),
        ("double(3)", "3.0"),
        ("double(3) / 2.0", "1.5"),
        ("double('2.5')", "2.5"),
        ("double('-1e3')", "-1000.0"),
        ("double(d)", "2.5"),
        ("double('x')", "error: 'x' cannot be converted to a double"),
        ("double(j.n)", "error: 'double' does not take null"),
        ("string(3)", r#""3""#),
        ("string(-3)", r#""-3""#),
        ("string(2.5)", r#""2.5""#),
        ("string(1.0)", r#""1""#),
        ("string(true)", r#""true""#),
        ("string('x')", r#""x""#),
        ("string(j.s)", r#""text""#),
        ("string(j.n)", "error: 'string' does not take null"),
        (
            "string(null)",
            "refused: line 1, column 1: 'string' does not take null; it takes a bool or an int or a double or a string",
        ),
        ("int(1, 2)", "refused: line 1, column 1: 'int' takes 1 argument, not 2"),
    ]);
}
