// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package sample

import (
	"context"
	"crypto/sha256"
	"math/rand/v2"
	"runtime"
	"strconv"
)

// Bounds of the flags of the steps that misbehave.
const (
	maxMiB   = 64 << 10
	minBytes = len(bigPrefix + bigSuffix)
	maxBytes = 64 << 20
)

// Flaky asks for another attempt until the attempt with the given number.
func Flaky(p Program, succeedOn int) error {
	if succeedOn < 1 {
		return failf("--succeed-on %d is not an attempt's number: give 1 or more", succeedOn)
	}
	attempt, err := p.attempt()
	if err != nil {
		return err
	}
	if attempt < succeedOn {
		return retryf("attempt %d of %d did not work out, as asked by --succeed-on", attempt, succeedOn)
	}
	return p.output(map[string]int{"attempts": attempt})
}

// attempt is the number of this attempt, from 1.
func (p Program) attempt() (int, error) {
	text, err := p.env(envAttempt)
	if err != nil {
		return 0, err
	}
	attempt, err := strconv.Atoi(text)
	if err != nil || attempt < 1 {
		return 0, failf("%s is %q, not an attempt's number: 1, 2 and so on", envAttempt, text)
	}
	return attempt, nil
}

// Fail ends with an exit code that is not retried.
func Fail(code int, message string) error {
	if code < 1 || code > 255 || code == exitRetry {
		return failf("--exit %d is not a failure: give 1 to 255, but not %d, which asks for another attempt", code, exitRetry)
	}
	return &Exit{Code: code, Message: message}
}

// Memhog uses so many MiB of memory, which a memory limit may not allow.
func Memhog(ctx context.Context, p Program, mib int) error {
	if mib < 1 || mib > maxMiB {
		return failf("--mib %d is out of range: give 1 to %d", mib, maxMiB)
	}
	held := make([][]byte, 0, mib)
	for range mib {
		if ctx.Err() != nil {
			return stopped("using memory")
		}
		block := make([]byte, 1<<20)
		for i := range block {
			block[i] = byte(i)
		}
		held = append(held, block)
	}
	err := p.output(map[string]int{"mib": len(held)})
	runtime.KeepAlive(held)
	return err
}

const (
	bigPrefix = `{"data":"`
	bigSuffix = `"}`
)

// Big leaves an output of exactly so many bytes, the same for the same seed.
func Big(p Program, size int) error {
	if size < minBytes || size > maxBytes {
		return failf("--bytes %d is out of range: give %d to %d", size, minBytes, maxBytes)
	}
	seed, err := p.env(envSeed)
	if err != nil {
		return err
	}
	random := rand.NewChaCha8(sha256.Sum256([]byte(seed)))
	doc := make([]byte, size)
	_, _ = random.Read(doc) // never fails
	for i, b := range doc {
		doc[i] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"[b%64]
	}
	copy(doc, bigPrefix)
	copy(doc[size-len(bigSuffix):], bigSuffix)
	return p.rawOutput(doc)
}

// Block waits until it is told to stop.
func Block(ctx context.Context) error {
	<-ctx.Done()
	return stopped("blocking")
}
