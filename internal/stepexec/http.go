// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package stepexec

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
)

// EnvHTTPCA holds the bundle of certificates, in PEM, that an http action trusts instead
// of the image's own.
const EnvHTTPCA = "AGENTTASK_HTTP_CA"

// EnvHTTPHeader holds the value of an http action's header i, counted from 0, where that
// is kept in a Secret.
func EnvHTTPHeader(i int) string { return "AGENTTASK_HTTP_HEADER_" + strconv.Itoa(i) }

// HTTPRequest is the input document of an http action's pod: the one request that the
// runner sends, all expressions evaluated. It holds no secrets, since it stands in the
// pod's annotations: it names the environment variables that do.
type HTTPRequest struct {
	// Method is GET, HEAD, POST, PUT, PATCH or DELETE.
	Method string `json:"method"`
	// URL is absolute, http or https, in visible ASCII.
	URL string `json:"url"`
	// Headers are sent as they are. Content-Type is application/json, where there is a
	// body, and User-Agent the runner's own, unless they stand here.
	Headers []HTTPHeader `json:"headers,omitempty"`
	// Body is sent with every method but GET and HEAD. Empty: no body.
	Body json.RawMessage `json:"body,omitempty"`
	// SuccessCodes mean success. Empty: 200 to 299.
	SuccessCodes []int32 `json:"successCodes,omitempty"`
	// Timeout is how long the request may take until its answer is read whole, more
	// than 0.
	Timeout metav1.Duration `json:"timeout"`
	// KeyHeader carries the idempotency key, over a header of the same name in Headers.
	// Nil: the key is not sent.
	KeyHeader *HTTPKeyHeader `json:"keyHeader,omitempty"`
	// Output is what of the answer is the action's output. Empty: Body.
	Output v1alpha1.HTTPOutput `json:"output,omitempty"`
	// OutputHeaders are the answer's headers that stand in an output of Response.
	OutputHeaders []string `json:"outputHeaders,omitempty"`
	// CAEnv names the environment variable that holds the certificates to trust, in PEM.
	// Empty: those of the image.
	CAEnv string `json:"caEnv,omitempty"`
}

// HTTPHeader is one header of an HTTPRequest.
type HTTPHeader struct {
	Name string `json:"name"`
	// Value is the header's value, where FromEnv is empty.
	Value string `json:"value,omitempty"`
	// FromEnv names the environment variable that holds the value. Newlines at its end
	// are left out.
	FromEnv string `json:"fromEnv,omitempty"`
}

// HTTPKeyHeader says how the idempotency key is sent.
type HTTPKeyHeader struct {
	// Name of the header. Empty: v1alpha1.DefaultKeyHeader.
	Name string `json:"name,omitempty"`
	// Bare sends the key as it is, instead of in quotes.
	Bare bool `json:"bare,omitempty"`
}

// Encode gives the request as canonical JSON: the same request, the same bytes.
func (r *HTTPRequest) Encode() ([]byte, error) {
	doc, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	return Canonical(doc)
}

// DecodeHTTPRequest reads a request and checks it. A field that it does not know is an
// error: to leave it out could make another request of it.
func DecodeHTTPRequest(doc []byte) (*HTTPRequest, error) {
	r := &HTTPRequest{}
	d := json.NewDecoder(bytes.NewReader(doc))
	d.DisallowUnknownFields()
	if err := d.Decode(r); err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the request")
	}
	return r, r.Validate()
}

var httpMethods = []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}

// Validate says what of the request cannot be sent, by the name of its field and without
// any of its values.
func (r *HTTPRequest) Validate() error {
	switch {
	case !slices.Contains(httpMethods, r.Method):
		return fmt.Errorf("method must be one of %s", strings.Join(httpMethods, ", "))
	case r.Timeout.Duration <= 0:
		return errors.New("timeout must be more than 0")
	case r.Output != "" && r.Output != v1alpha1.HTTPOutputBody && r.Output != v1alpha1.HTTPOutputResponse:
		return fmt.Errorf("output must be %s or %s", v1alpha1.HTTPOutputBody, v1alpha1.HTTPOutputResponse)
	case len(r.Body) > 0 && !json.Valid(r.Body):
		return errors.New("body is not JSON")
	}
	if err := validateURL(r.URL); err != nil {
		return err
	}
	for i, h := range r.Headers {
		if err := h.validate(); err != nil {
			return fmt.Errorf("headers[%d]: %w", i, err)
		}
	}
	if r.KeyHeader != nil && r.KeyHeader.Name != "" && !headerName.MatchString(r.KeyHeader.Name) {
		return errors.New("keyHeader.name is not the name of a header")
	}
	return nil
}

func validateURL(text string) error {
	if strings.ContainsFunc(text, func(c rune) bool { return c <= ' ' || c > '~' }) {
		return errors.New("url holds a space, a control character or a character beyond ASCII; put values into it with urlEncode")
	}
	u, err := url.Parse(text)
	switch {
	case err != nil: // it quotes the URL
		return errors.New("url is not a URL; put values into it with urlEncode")
	case u.Scheme != "http" && u.Scheme != "https":
		return errors.New("url must begin with http:// or https://")
	case u.Hostname() == "":
		return errors.New("url names no host")
	}
	return nil
}

// headerName is a token of RFC 9110, section 5.6.2.
var headerName = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")

func (h HTTPHeader) validate() error {
	switch {
	case !headerName.MatchString(h.Name):
		return errors.New("name is not the name of a header")
	case h.Value != "" && h.FromEnv != "":
		return errors.New("it has a value and a fromEnv")
	case !ValidHeaderValue(h.Value):
		return errors.New("value holds a control character")
	}
	return nil
}

// ValidHeaderValue says whether s can be a header's value: it holds no control character
// but tabs.
func ValidHeaderValue(s string) bool {
	return !strings.ContainsFunc(s, func(c rune) bool { return c != '\t' && c < ' ' || c == 0x7f })
}

// ValidKey says whether key can be sent in a header: it is visible ASCII and not empty.
func ValidKey(key string) bool {
	return key != "" && !strings.ContainsFunc(key, func(c rune) bool { return c <= ' ' || c > '~' })
}

// QuoteKey writes a valid key as a string of structured fields (RFC 9651, section 3.3.3):
// in double quotes, with a backslash before each quote and backslash.
func QuoteKey(key string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(key) + `"`
}
