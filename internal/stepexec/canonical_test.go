// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package stepexec

import (
	"bytes"
	"encoding/json"
	"math"
	"strconv"
	"strings"
	"testing"
)

// Values of RFC 8785, appendix B: the bits of a double and its one spelling.
func TestCanonicalNumbersOfRFC8785(t *testing.T) {
	tests := map[uint64]string{
		0x0000000000000000: "0", 0x8000000000000000: "0",
		0x0000000000000001: "5e-324", 0x8000000000000001: "-5e-324",
		0x7fefffffffffffff: "1.7976931348623157e+308", 0xffefffffffffffff: "-1.7976931348623157e+308",
		0x4340000000000000: "9007199254740992", 0xc340000000000000: "-9007199254740992",
		0x4430000000000000: "295147905179352830000",
		0x44b52d02c7e14af5: "9.999999999999997e+22", 0x44b52d02c7e14af6: "1e+23", 0x44b52d02c7e14af7: "1.0000000000000001e+23",
		0x444b1ae4d6e2ef4e: "999999999999999700000", 0x444b1ae4d6e2ef4f: "999999999999999900000", 0x444b1ae4d6e2ef50: "1e+21",
		0x3eb0c6f7a0b5ed8c: "9.999999999999997e-7", 0x3eb0c6f7a0b5ed8d: "0.000001",
		0x41b3de4355555553: "333333333.3333332", 0x41b3de4355555554: "333333333.33333325", 0x41b3de4355555555: "333333333.3333333",
		0x41b3de4355555556: "333333333.3333334", 0x41b3de4355555557: "333333333.33333343",
		0xbecbf647612f3696: "-0.0000033333333333333333", 0x43143ff3c1cb0959: "1424953923781206.2",
	}
	for bits, want := range tests {
		in := strconv.FormatFloat(math.Float64frombits(bits), 'e', -1, 64)
		got, err := Canonical([]byte(in))
		if string(got) != want {
			t.Errorf("%s became %s, want %s", in, got, want)
		}
		// RFC 8785 has these, and their spelling is refused: see TestCanonicalRefuses.
		refused := len(strings.TrimPrefix(want, "-")) >= 16 && !strings.ContainsAny(want, ".e")
		if (err != nil) != refused {
			t.Errorf("%s: error %v", in, err)
		}
	}
}

func TestCanonical(t *testing.T) {
	tests := map[string]struct{ in, want string }{
		"RFC 8785, section 3.2.2": {
			`{"numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
			  "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
			  "literals": [null, true, false]}`,
			`{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],"string":"€$\u000f\nA'B\"\\\\\"/"}`},
		"RFC 8785, section 3.2.3: names are sorted by their UTF-16 code units": {
			`{"\u20ac":"Euro Sign","\r":"Carriage Return","\ufb33":"Hebrew Letter Dalet With Dagesh","1":"One","\ud83d\ude00":"Emoji: Grinning Face","\u0080":"Control","\u00f6":"Latin Small Letter O With Diaeresis"}`,
			"{\"\\r\":\"Carriage Return\",\"1\":\"One\",\"\u0080\":\"Control\",\"ö\":\"Latin Small Letter O With Diaeresis\",\"€\":\"Euro Sign\",\"😀\":\"Emoji: Grinning Face\",\"\ufb33\":\"Hebrew Letter Dalet With Dagesh\"}"},
		"the order of names does not matter": {`{"b":{"z":1,"y":2},"a":[3,1,2]}`, `{"a":[3,1,2],"b":{"y":2,"z":1}}`},
		"the spelling of numbers does not":   {`[1, 1.0, 1e0, 10E-1, 0.1e1, -0, 0.0]`, `[1,1,1,1,1,0,0]`},
		"nor that of characters":             {`"\u0041\u002f\/"`, `"A//"`},
		"what HTML would escape stays":       {`"<a>&\u2028"`, "\"<a>&\u2028\""},
		"letters are not normalised":         {`["\u00e9","e\u0301"]`, "[\"é\",\"e\u0301\"]"},
		"the largest integer":                {`[9007199254740991,-9007199254740991]`, `[9007199254740991,-9007199254740991]`},
		"a number that stays a double":       {`[1e23,1e21,-1.5e300]`, `[1e+23,1e+21,-1.5e+300]`},
		"the largest integer, as a double":   {`[9007199254740991.0,-9.007199254740991e15]`, `[9007199254740991,-9007199254740991]`},
		"space around a document":            {" \n\t\r null \n", `null`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			in := []byte(tt.in)
			got, err := Canonical(in)
			if err != nil || string(got) != tt.want {
				t.Errorf("got  %s\nwant %s\nerror %v", got, tt.want, err)
			}
			if string(in) != tt.in {
				t.Error("the input was changed")
			}
		})
	}
}

func TestCanonicalRefuses(t *testing.T) {
	tests := map[string]struct{ in, want string }{
		"nothing":                               {``, ""},
		"a half document":                       {`{"a":1`, ""},
		"text after the document":               {`1 2`, ""},
		"a name twice":                          {`{"a":1,"a":2}`, "duplicate"},
		"a name twice, spelled otherwise":       {`{"a":1,"\u0061":2}`, "duplicate"},
		"text that is not UTF-8":                {"\"\xff\"", "UTF-8"},
		"half a surrogate pair":                 {`"\ud800"`, "surrogate"},
		"a number beyond a double":              {`{"a":[1e400]}`, "/a/0 is out of range"},
		"2^53+1, which is no double":            {`{"id":9007199254740993}`, "integer 9007199254740993 at /id is beyond 2^53"},
		"-(2^53+1)":                             {`-9007199254740993`, "beyond 2^53"},
		"2^53, which 2^53+1 would be taken for": {`9007199254740992`, "beyond 2^53"},
		"an identifier of 19 digits":            {`[1234567890123456789]`, "write it as a string"},
		"10^16 with an exponent":                {`{"n":1e16}`, "number 1e16 at /n is an integer beyond 2^53-1 and would lose digits; write it as a string"},
		"1.7e18":                                {`1.7e18`, "number 1.7e18 is an integer beyond 2^53-1"},
		"2^53 with a fraction":                  {`9007199254740992.0`, "beyond 2^53"},
		"what is rounded to 2^53":               {`9007199254740991.6`, "beyond 2^53"},
		"the last below 10^21":                  {`-9.999999999999999e20`, "beyond 2^53"},
		"an integer of 30 digits":               {`123456789012345678901234567890`, "integer 123456789012345678901234567890 is beyond 2^53"},
		"an integer of 100 digits, cut":         {strings.Repeat("1", 100), "integer " + strings.Repeat("1", 40) + "… is beyond 2^53"},
		"NaN":                                   {`NaN`, ""},
		"a number with a plus":                  {`+1`, ""},
		"a number with a leading zero":          {`01`, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got, err := Canonical([]byte(tt.in)); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %s, error %v; want an error that says %q", got, err, tt.want)
			}
		})
	}
}

func FuzzCanonical(f *testing.F) {
	for _, seed := range []string{`{"b":[1e0,2.50],"a":null}`, `9007199254740993`, `-0.0`, `"\ud83d\ude00<"`, `{"a":{"a":{"a":[]}}}`, `1e-400`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		got, err := Canonical(doc)
		if err != nil {
			return
		}
		again, err := Canonical(got)
		if err != nil || !bytes.Equal(got, again) {
			t.Errorf("%s is canonical %s, which is canonical %s; error %v", doc, got, again, err)
		}
		var want, have any
		if json.Unmarshal(doc, &want) == nil && json.Unmarshal(got, &have) == nil {
			a, err1 := json.Marshal(want)
			b, err2 := json.Marshal(have)
			if err1 != nil || err2 != nil || string(bytes.ReplaceAll(a, []byte("-0"), []byte("0"))) != string(bytes.ReplaceAll(b, []byte("-0"), []byte("0"))) {
				t.Errorf("%s has another value than its canonical form %s", doc, got)
			}
		}
	})
}
