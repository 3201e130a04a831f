// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

// Package expr finds, checks and evaluates the CEL expressions that stand inside
// ${...} in the strings of a JSON value. It is pure: no client, no clock, no I/O, no
// randomness. The same document and the same variables always give the same bytes,
// since idempotency keys are made of them; a map is walked in the order of its keys.
//
// # Where an expression may stand
//
// In any string value, at any depth, as often as wanted. Names of object members are
// literal. The closing brace is found as CEL reads the text: braces inside string
// literals, comments and nested {...} do not close it, so ${ {'a': 1}['a'] } and
// ${'}'} are whole expressions. $${ is a literal ${. A string that holds neither ${
// nor $${ is copied as it is. An empty or unclosed expression is an error.
//
// # What becomes of the value
//
// A string that is exactly one ${...} becomes the value itself, whatever its type:
//
//	"${params.items}"               -> [1, 2]
//	"${params.count + 1}"           -> 3
//
// In a longer string each value is put into the text: strings as they are, numbers and
// bools as JSON spells them, bytes, timestamps and durations as below. null, lists and
// maps are errors there: use the expression alone, json(x) for its JSON text, or
// x.orValue(...) for a default:
//
//	"order ${params.id}, ${json(params.items)}"
//
// Into JSON go: null, bool, string, list and map as themselves; a map's int, uint or
// bool keys as their spelling; bytes as base64 (standard alphabet, padded); a timestamp
// in RFC 3339 with UTC; a duration as Go spells it (1h30m0s); an optional that is set as
// its value. An optional that is not set and a type are errors.
//
// # Numbers
//
// A JSON number without fraction and exponent is an int, so params.n + 1 works; from
// 2^63 to 2^64-1 it is a uint; beyond 64 bits it can be compared with == and put into
// text, digit for digit, and nothing else. Any other number is a double. An int is
// written without exponent.
//
// Canonical JSON (RFC 8785) spells numbers as doubles, so an integer beyond
// ±9007199254740991 (2^53-1) would lose digits. In the document or as a value it is an
// error that names the path. Put it into a string: "${string(params.id)}" keeps all
// digits. NaN, infinities and numbers beyond a double's range are errors.
//
// # Variables
//
//	params                   the task's params
//	task                     name, namespace, uid, runID
//	steps['find-order']      output (absent before there is one), phase, attempt
//
// A name with a '-' cannot follow a dot: steps.a-b is a subtraction. Other fields of
// task and of a step are errors when the document is compiled.
//
// A Scope adds variables for the places that know them:
//
//	key                      the step's idempotency key, a string
//	result                   the output of a check, any value
//
// A comprehension may not give its variable the name of one of these that is known in
// its place.
//
// # Fields that are not JSON
//
// A field that is a string, such as a URL, is compiled by CompileString or CompileBool
// and rendered by RenderString or RenderBool. A value of another type is an error,
// where possible when the field is compiled: "${params.n}" that gives a number is no
// URL, "${string(params.n)}" and "n-${params.n}" are.
//
// # Functions
//
// CEL's standard library and macros, optional syntax (steps['a'].?output.?b.orValue('x')),
// the extension libraries strings, math, lists, sets, regex (RE2) and base64 encoders,
// and
//
//	json(x)         canonical JSON text of any value
//	parseJSON(s)    the value of a JSON text
//	urlEncode(s)    s percent-encoded: all but A-Z a-z 0-9 - . _ ~ as %XX of its UTF-8
//
// There is no now() and nothing random.
//
// # Limits
//
// A document has at most 1 MiB, 200 levels and 1,000 expressions of at most 8,192 bytes.
// One render may cost 1,000,000 (1 for each operation, and 1 for each ten elements or
// characters that a function reads or gives) and give 1 MiB. No value in between may
// have more than 1,048,576 elements and characters; a list made by lists.range has at
// most 10,000 elements; a regular expression at most 1,024 bytes and 2,000 states. A
// function whose work grows with the product of its arguments refuses early. What hits
// a limit is an error, the same on every try.
//
// # Errors
//
// Every error is an *Error of one line: the JSON path, the expression, the column within
// it, the cause.
//
//	input.to: ${steps['find-order'].output.email}: no such key: email
package expr
