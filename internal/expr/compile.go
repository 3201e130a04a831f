// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package expr

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

const (
	// maxDocument is how large a document may be, in bytes.
	maxDocument = 1 << 20
	// maxExpressions is how many expressions a document may hold.
	maxExpressions = 1000
	// maxExpr is how long one expression may be, in bytes.
	maxExpr = 8192
)

// plainName is a member's name that a path shows after a dot.
var plainName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// place is where a value stands: a chain up to the document, spelled only for errors.
type place struct {
	parent *place
	name   string
	index  int // of an array's element; -1 for a member
}

func (p *place) String() string {
	switch {
	case p.parent == nil:
		return p.name
	case p.index >= 0:
		return fmt.Sprintf("%s[%d]", p.parent, p.index)
	case plainName.MatchString(p.name):
		return strings.TrimPrefix(fmt.Sprintf("%s.%s", p.parent, p.name), ".")
	}
	return fmt.Sprintf("%s['%s']", p.parent, shorten(p.name, maxShown))
}

// compiler makes a Template of a document, value by value.
type compiler struct {
	dec   *jsontext.Decoder
	t     *Template
	lit   []byte // literal JSON since the last expression
	count int    // of expressions
}

func compile(root string, doc []byte, scope Scope) (*Template, error) {
	if len(doc) > maxDocument {
		return nil, &Error{Path: root, Cause: fmt.Sprintf("the document has %d bytes, at most %d may be", len(doc), maxDocument)}
	}
	c := compiler{dec: jsontext.NewDecoder(bytes.NewReader(doc)), t: &Template{root: root, refs: references{scope: scope}}}
	at := &place{name: root}
	if err := c.value(at, 0); err != nil {
		return nil, err
	}
	if _, err := c.dec.ReadToken(); !errors.Is(err, io.EOF) {
		return nil, &Error{Path: root, Cause: "text after the JSON document"}
	}
	t := c.t
	if len(c.lit) > 0 {
		t.parts = append(t.parts, part{lit: c.lit})
	}
	if t.Literal() {
		lit, err := stepexec.Canonical(t.parts[0].lit)
		if err != nil {
			return nil, &Error{Path: root, Cause: jsonError(err).Error()}
		}
		t.parts[0].lit = lit
	}
	t.steps = t.refs.names()
	t.weight = 2*len(doc) + 1024 + c.count*exprWeight
	return t, nil
}

// value compiles the next value.
func (c *compiler) value(at *place, depth int) error {
	if depth > maxDepth {
		return &Error{Path: at.String(), Cause: fmt.Sprintf("nested deeper than %d levels", maxDepth)}
	}
	tok, err := c.dec.ReadToken()
	if err != nil {
		return &Error{Path: at.String(), Cause: jsonError(err).Error()}
	}
	switch tok.Kind() {
	case jsontext.KindBeginObject:
		return c.object(at, depth)
	case jsontext.KindBeginArray:
		return c.array(at, depth)
	case jsontext.KindString:
		return c.string(at, tok.String())
	case jsontext.KindNumber:
		return c.number(at, tok.String())
	}
	c.lit = append(c.lit, tok.String()...)
	return nil
}

func (c *compiler) object(at *place, depth int) error {
	c.lit = append(c.lit, '{')
	for first := true; c.dec.PeekKind() != jsontext.KindEndObject; first = false {
		name, err := c.dec.ReadToken()
		if err != nil {
			return &Error{Path: at.String(), Cause: jsonError(err).Error()}
		}
		member := &place{parent: at, name: name.String(), index: -1}
		if !first {
			c.lit = append(c.lit, ',')
		}
		if c.lit, err = appendString(c.lit, member.name); err != nil {
			return &Error{Path: at.String(), Cause: err.Error()}
		}
		c.lit = append(c.lit, ':')
		if err := c.value(member, depth+1); err != nil {
			return err
		}
	}
	return c.end(at, '}')
}

func (c *compiler) array(at *place, depth int) error {
	c.lit = append(c.lit, '[')
	for i := 0; c.dec.PeekKind() != jsontext.KindEndArray; i++ {
		if i > 0 {
			c.lit = append(c.lit, ',')
		}
		if err := c.value(&place{parent: at, index: i}, depth+1); err != nil {
			return err
		}
	}
	return c.end(at, ']')
}

// end reads the bracket that closes an object or array.
func (c *compiler) end(at *place, bracket byte) error {
	if _, err := c.dec.ReadToken(); err != nil {
		return &Error{Path: at.String(), Cause: jsonError(err).Error()}
	}
	c.lit = append(c.lit, bracket)
	return nil
}

func (c *compiler) number(at *place, s string) error {
	if isInteger(s) {
		if n, err := strconv.ParseInt(s, 10, 64); err != nil || n > maxSafeInteger || n < -maxSafeInteger {
			return &Error{Path: at.String(), Cause: unsafeInteger(s).Error()}
		}
	} else if _, err := decodeNumber(s); err != nil {
		return &Error{Path: at.String(), Cause: err.Error()}
	}
	c.lit = append(c.lit, s...)
	return nil
}

// string compiles a string: its segments, or their text if none is an expression.
func (c *compiler) string(at *place, s string) error {
	segments, scanErr := scan(s)
	if scanErr != nil {
		scanErr.Path = at.String()
		return scanErr
	}
	if !slices.ContainsFunc(segments, func(s segment) bool { return s.isExpr }) {
		var plain string
		for _, s := range segments {
			plain += s.text
		}
		var err error
		if c.lit, err = appendString(c.lit, plain); err != nil {
			return &Error{Path: at.String(), Cause: err.Error()}
		}
		return nil
	}
	t := &text{path: at.String()}
	for _, s := range segments {
		if !s.isExpr {
			t.items = append(t.items, item{lit: s.text})
			continue
		}
		if c.count++; c.count > maxExpressions {
			return &Error{Path: t.path, Cause: fmt.Sprintf("more than %d expressions", maxExpressions)}
		}
		program, kind, err := compileExpr(t.path, s.text, len(segments) > 1, &c.t.refs)
		if err != nil {
			return err
		}
		t.items = append(t.items, item{src: s.text, program: program, kind: kind})
	}
	c.t.parts = append(c.t.parts, part{lit: c.lit, text: t})
	c.lit = nil
	return nil
}

// keys are the names of the steps, sorted.
func keys(steps map[string]StepVars) []string { return slices.Sorted(maps.Keys(steps)) }
