vcl 4.1;

# Varnish in front of Causeway, as a shared cache. For Varnish 6.6 or later, as /etc/varnish/default.vcl. Varnish does
# not terminate TLS: use Hitch, HAProxy or a CDN in front of it. deploy/README.md describes the settings of Causeway.
#
# Causeway purges taken-down content from this cache by BAN. With the module xkey (package varnish-modules) it uses
# PURGE, which is cheaper in a large cache: uncomment the lines below that begin with "#xkey ".
#
# Passed responses for slow clients are buffered in the storage "Transient", which is unbounded by default: start
# Varnish with "-s Transient=malloc,512m", and from 7.3 on with "-p transit_buffer=1m", which applies backpressure
# instead.

import std;
#xkey import xkey;

backend causeway {
    .host = "127.0.0.1";
    .port = "8080";
    # Longer than http.stall_timeout_seconds plus names.timeout_seconds, so that clients receive Causeway's 504 with its
    # diagnostics, and not Varnish's.
    .first_byte_timeout = 90s;
    .between_bytes_timeout = 90s;
}

# The clients that may purge: only Causeway, with policy.caches = ["ban+http://127.0.0.1:6081"] or
# "xkey+http://127.0.0.1:6081". A TLS terminator on this machine must use the PROXY protocol, or every client would have
# the address of this machine.
acl may_purge {
    "127.0.0.1";
    "::1";
}

sub vcl_recv {
    if (req.method == "BAN" || req.method == "PURGE") {
        if (client.ip !~ may_purge) {
            return (synth(403));
        }
        # A key is a CID or a name. Anything else could inject a ban expression.
        if (req.http.Surrogate-Key !~ "^[0-9A-Za-z._-]+$") {
            return (synth(400));
        }
        #xkey set req.http.X-Purged = xkey.purge(req.http.xkey);
        #xkey return (synth(200));
        # The ban only uses obj, so that the ban lurker can process and remove it. A space would end the pattern.
        if (std.ban("obj.http.Surrogate-Key ~ (^|\s)" + regsuball(req.http.Surrogate-Key, "\.", "\\.") + "(\s|$)")) {
            return (synth(200));
        }
        return (synth(500, std.ban_error()));
    }

    # Set all of these: Varnish would forward those of the client, and Causeway trusts this proxy. Varnish appends the
    # client's address to X-Forwarded-For by itself. For clients without TLS, use "http" here.
    set req.http.X-Forwarded-Host = req.http.Host;
    set req.http.X-Forwarded-Proto = "https";

    # Content is the same for every client. Varnish does not cache requests with cookies.
    unset req.http.Cookie;

    # Causeway answers only-if-cached from its own store. Varnish would drop that header, and Causeway would use the
    # network.
    if (req.http.Cache-Control ~ "(?i)only-if-cached") {
        return (pass);
    }

    # Range and HEAD requests are passed, since Varnish would otherwise fetch whole files for them. So are requests with
    # the header Service-Worker, which Causeway rejects for URLs that it serves without that header.
    if (req.http.Range || req.method == "HEAD" || req.http.Service-Worker) {
        return (pass);
    }
}

sub vcl_backend_response {
    # Causeway sends Cache-Control with every answer (s-maxage, if http.shared_max_age_seconds is set). Stale answers
    # are not served, since their content may have been taken down; revalidation is cheap.
    set beresp.grace = 0s;

    # Without that setting, answers that are fresh for longer are not cached. Large answers and those of unknown length,
    # such as archives, are not cached either, since they would evict everything else.
    if ((beresp.ttl > 1000s && beresp.http.Cache-Control !~ "s-maxage=[0-9]")
        || std.integer(beresp.http.Content-Length, 1073741824) > 104857600) {
        set beresp.uncacheable = true;
        # Hit-for-miss: for this time, requests for it do not wait for each other.
        set beresp.ttl = 120s;
    } else if (beresp.ttl > 0s && beresp.http.Cache-Control !~ "(?i)no-store|no-cache|private") {
        # Stale answers are kept for this time, for revalidation.
        set beresp.keep = 1d;
    }
    #xkey set beresp.http.xkey = beresp.http.Surrogate-Key;
}

sub vcl_deliver {
    if (obj.hits > 0) {
        set resp.http.X-Cache-Status = "HIT";
    } else {
        set resp.http.X-Cache-Status = "MISS";
    }
    # These headers are for this cache. Keep them if a CDN in front of it is purged by them.
    unset resp.http.Surrogate-Key;
    unset resp.http.Cache-Tag;
    #xkey unset resp.http.xkey;
}
