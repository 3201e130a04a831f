// Command nodectl asks the node's container runtime, over CRI, the few things
// that the cluster scripts need to know:
//
//	nodectl -socket PATH ready              exit 0 when runtime and pod network are ready
//	nodectl -socket PATH purge              stop and remove every pod sandbox
//	nodectl -socket PATH missing FILE...    print the image archives the runtime does not hold yet
//	nodectl -socket PATH wait FILE...       wait until the runtime holds all of them
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const pollEvery = 50 * time.Millisecond

type node struct {
	runtime cri.RuntimeServiceClient
	images  cri.ImageServiceClient
}

func main() {
	socket := flag.String("socket", "", "path of the container runtime's socket")
	timeout := flag.Duration("timeout", 30*time.Second, "give up after this long")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), *timeout)
	defer cancel()
	if err := run(ctx, *socket, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "nodectl:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, socket string, args []string) error {
	if socket == "" || len(args) == 0 {
		return errors.New("usage: nodectl -socket PATH ready|purge|missing|wait [FILE...]")
	}
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	n := node{runtime: cri.NewRuntimeServiceClient(conn), images: cri.NewImageServiceClient(conn)}
	switch verb, files := args[0], args[1:]; verb {
	case "ready":
		return n.ready(ctx)
	case "purge":
		return n.purge(ctx)
	case "missing":
		missing, err := n.missing(ctx, files)
		for _, file := range missing {
			fmt.Println(file)
		}
		return err
	case "wait":
		return n.wait(ctx, files)
	default:
		return fmt.Errorf("unknown verb %q: want ready, purge, missing or wait", verb)
	}
}

func (n node) ready(ctx context.Context) error {
	answer, err := n.runtime.Status(ctx, &cri.StatusRequest{})
	if err != nil {
		return err
	}
	for _, c := range answer.GetStatus().GetConditions() {
		if !c.GetStatus() {
			return fmt.Errorf("%s is false: %s: %s", c.GetType(), c.GetReason(), c.GetMessage())
		}
	}
	return nil
}

// purge removes all sandboxes at once. Removing one stops its containers,
// takes its network interface down and unmounts what was mounted for it. A
// failure does not keep the others from being removed.
func (n node) purge(ctx context.Context) error {
	answer, err := n.runtime.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	if err != nil {
		return err
	}
	results := make(chan error)
	for _, sandbox := range answer.GetItems() {
		go func() { results <- n.remove(ctx, sandbox) }()
	}
	var all error
	for range answer.GetItems() {
		all = errors.Join(all, <-results)
	}
	return all
}

func (n node) remove(ctx context.Context, sandbox *cri.PodSandbox) error {
	name := sandbox.GetMetadata().GetNamespace() + "/" + sandbox.GetMetadata().GetName()
	if _, err := n.runtime.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: sandbox.GetId()}); err != nil {
		return fmt.Errorf("stop pod %s: %w", name, err)
	}
	if _, err := n.runtime.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: sandbox.GetId()}); err != nil {
		return fmt.Errorf("remove pod %s: %w", name, err)
	}
	return nil
}

// missing returns the archives of which a tag is absent from the runtime or
// stands for another image there.
func (n node) missing(ctx context.Context, files []string) ([]string, error) {
	answer, err := n.images.ListImages(ctx, &cri.ListImagesRequest{})
	if err != nil {
		return nil, err
	}
	held := map[string]string{}
	for _, image := range answer.GetImages() {
		for _, tag := range image.GetRepoTags() {
			held[tag] = image.GetId()
		}
	}
	var missing []string
	for _, file := range files {
		images, err := readArchive(file)
		if err != nil {
			return nil, err
		}
		for _, image := range images {
			if !image.heldIn(held) {
				missing = append(missing, file)
				break
			}
		}
	}
	return missing, nil
}

func (n node) wait(ctx context.Context, files []string) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		missing, err := n.missing(ctx, files)
		if err != nil {
			return err
		}
		if len(missing) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the runtime does not list the images of %v: %w", missing, ctx.Err())
		case <-tick.C:
		}
	}
}
