// Command cluster-dns is CoreDNS with only the plugins that a one-node test
// cluster needs: service names from the Kubernetes API, everything else handed
// on to the resolvers of the host. Leaving out the other plugins, and with
// them the clients of several clouds, keeps the build short.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"

	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/forward"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
)

// directives are the names a Corefile may use, in the order in which the
// plugins see a query.
var directives = []string{
	"bind",
	"ready",
	"errors",
	"cache",
	"kubernetes",
	"forward",
}

func main() {
	dnsserver.Directives = directives
	coremain.Run()
}
