package schemaregistry

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// A node is a JSON value whose objects keep the order of their keys, as encoding/json's do
// not. Of a key given twice the last value counts, at the place of the first.
type node struct {
	kind   byte // 's' string, 'o' object, 'a' array, 'l' number, true, false or null
	text   string
	keys   []string
	values []node
}

func (n node) get(key string) (node, bool) {
	for i, k := range n.keys {
		if k == key {
			return n.values[i], true
		}
	}
	return node{}, false
}

// parseJSON parses one value nested at most maxDepth deep.
func parseJSON(text string, maxDepth int) (node, error) {
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	n, err := parseNode(d, maxDepth)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return n, errors.New("the JSON text ends too early")
	}
	if err != nil {
		return n, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return n, fmt.Errorf("more text after the JSON value at byte %d", d.InputOffset())
	}
	return n, nil
}

func parseNode(d *json.Decoder, depth int) (node, error) {
	if depth == 0 {
		return node{}, fmt.Errorf("nested too deep at byte %d", d.InputOffset())
	}
	token, err := d.Token()
	if err != nil {
		return node{}, err
	}
	switch t := token.(type) {
	case string:
		return node{kind: 's', text: t}, nil
	case json.Number:
		return node{kind: 'l', text: t.String()}, nil
	case bool:
		return node{kind: 'l', text: fmt.Sprint(t)}, nil
	case nil:
		return node{kind: 'l', text: "null"}, nil
	}
	if token == json.Delim('[') {
		n := node{kind: 'a'}
		for d.More() {
			v, err := parseNode(d, depth-1)
			if err != nil {
				return n, err
			}
			n.values = append(n.values, v)
		}
		_, err = d.Token()
		return n, err
	}
	n := node{kind: 'o'}
	at := map[string]int{}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return n, err
		}
		v, err := parseNode(d, depth-1)
		if err != nil {
			return n, err
		}
		k := key.(string) // the decoder admits no other key
		if i, ok := at[k]; ok {
			n.values[i] = v
			continue
		}
		at[k] = len(n.keys)
		n.keys, n.values = append(n.keys, k), append(n.values, v)
	}
	_, err = d.Token()
	return n, err
}

// append writes the value without spaces.
func (n node) append(dst []byte) []byte {
	switch n.kind {
	case 's':
		return appendString(dst, n.text)
	case 'l':
		return append(dst, n.text...)
	case 'a':
		dst = append(dst, '[')
		for i, v := range n.values {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = v.append(dst)
		}
		return append(dst, ']')
	}
	dst = append(dst, '{')
	for i, v := range n.values {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(appendString(dst, n.keys[i]), ':')
		dst = v.append(dst)
	}
	return append(dst, '}')
}

func appendString(dst []byte, s string) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.Encode(s) // a string always encodes
	return append(dst, bytes.TrimRight(b.Bytes(), "\n")...)
}

func (n *node) set(key string, v node) {
	n.keys, n.values = append(n.keys, key), append(n.values, v)
}

// with returns the object with another value of a key that it has.
func (n node) with(key string, v node) node {
	n.values = slices.Clone(n.values)
	n.values[slices.Index(n.keys, key)] = v
	return n
}

func str(s string) node { return node{kind: 's', text: s} }
