// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package sample

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
)

func TestFlaky(t *testing.T) {
	for name, tc := range map[string]struct {
		attempt    string
		succeedOn  int
		wantCode   int
		wantOutput string
		want       string
	}{
		"too early":           {"1", 3, 75, "", "attempt 1 of 3"},
		"still too early":     {"2", 3, 75, "", "attempt 2 of 3"},
		"in time":             {"3", 3, 0, `{"attempts":3}`, ""},
		"later":               {"4", 3, 0, `{"attempts":4}`, ""},
		"never":               {"1", 0, 1, "", "--succeed-on 0"},
		"no attempt":          {"", 1, 1, "", "AGENTTASK_ATTEMPT is not set"},
		"an attempt in words": {"one", 1, 1, "", `AGENTTASK_ATTEMPT is "one"`},
	} {
		t.Run(name, func(t *testing.T) {
			p := step(t, "")
			p.Getenv = environment(map[string]string{envAttempt: tc.attempt})
			code := p.Finish(Flaky(p, tc.succeedOn))
			if got := left(t, p, messageFile); code != tc.wantCode || !strings.Contains(got, tc.want) {
				t.Errorf("exit code %d, message %q; want %d, %q", code, got, tc.wantCode, tc.want)
			}
			if got := left(t, p, outputFile); got != tc.wantOutput {
				t.Errorf("output %q, want %q", got, tc.wantOutput)
			}
		})
	}
}

func TestFail(t *testing.T) {
	p := step(t, "")
	if code := p.Finish(Fail(3, "on purpose")); code != 3 || left(t, p, messageFile) != "on purpose" {
		t.Errorf("exit code %d, message %q", code, left(t, p, messageFile))
	}
	for _, code := range []int{-1, 0, 75, 256} {
		if got := p.Finish(Fail(code, "")); got != 1 || !strings.Contains(left(t, p, messageFile), "--exit") {
			t.Errorf("--exit %d: exit code %d, message %q; want 1 and the flag", code, got, left(t, p, messageFile))
		}
	}
}

func TestMemhog(t *testing.T) {
	p := step(t, "")
	if err := Memhog(t.Context(), p, 2); err != nil || left(t, p, outputFile) != `{"mib":2}` {
		t.Errorf("%v, output %q", err, left(t, p, outputFile))
	}
	for _, mib := range []int{0, maxMiB + 1} {
		if err := Memhog(t.Context(), p, mib); err == nil || !strings.Contains(err.Error(), "--mib") {
			t.Errorf("--mib %d: %v", mib, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if code := p.Finish(Memhog(ctx, p, maxMiB)); code != 143 {
		t.Errorf("stopped: exit code %d, want 143", code)
	}
}

func TestBigLeavesTheSameForTheSameSeed(t *testing.T) {
	output := func(seed string, size int) string {
		p := step(t, "")
		p.Getenv = environment(map[string]string{envSeed: seed})
		if err := Big(p, size); err != nil {
			t.Fatal(err)
		}
		return left(t, p, outputFile)
	}
	for _, size := range []int{minBytes, minBytes + 1, 4096, 1 << 20} {
		got := output("7", size)
		body, err := canonical([]byte(got))
		if len(got) != size || err != nil || string(body) != got {
			t.Errorf("%d bytes: %d bytes of output, canonical: %t, %v", size, len(got), string(body) == got, err)
		}
		var v struct{ Data string }
		if err := json.Unmarshal([]byte(got), &v); err != nil || len(v.Data) != size-minBytes {
			t.Errorf("%d bytes: %v, data of %d bytes", size, err, len(v.Data))
		}
	}
	if output("7", 4096) != output("7", 4096) {
		t.Error("the same seed gives another output")
	}
	if output("7", 4096) == output("8", 4096) {
		t.Error("another seed gives the same output")
	}
}

func TestBigNamesWhatIsWrong(t *testing.T) {
	p := step(t, "")
	for _, size := range []int{0, minBytes - 1, maxBytes + 1} {
		if err := Big(p, size); err == nil || !strings.Contains(err.Error(), "--bytes") {
			t.Errorf("--bytes %d: %v", size, err)
		}
	}
	p.Getenv = environment(nil)
	if err := Big(p, 100); err == nil || !strings.Contains(err.Error(), envSeed) {
		t.Errorf("no seed: %v", err)
	}
}

func TestBlockEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	p := step(t, "")
	ended := make(chan int, 1)
	go func() { ended <- p.Finish(Block(ctx)) }()
	cancel()
	if code := <-ended; code != 143 {
		t.Errorf("exit code %d, want 143", code)
	}
}
